//! PostgreSQL as far as the protocol relies on it: snapshots, the key's lock, unique rows, and one transaction's statements.

use crate::{
    protocol::{Level, Protocol, Request, Without},
    state::{Answer, Name},
};

/// Holds the server's side of a transaction. It goes on when its process does not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tx {
    pub(crate) name: Name,
    pub(crate) request: Request,
    pub(crate) level: Level,
    pub(crate) stage: Stage,
    /// What was committed when the statement that runs began, or the transaction's first.
    pub(crate) snapshot: Option<Set>,
    pub(crate) locked: bool,
    /// Whether the claim saw an expired record in the way.
    pub(crate) expired: bool,
    /// The places where it has put rows that are not committed.
    pub(crate) placed: Set,
    /// The records that it has deleted, not yet committed.
    pub(crate) deleted: Set,
}

/// Says what the server is to do next, or what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Stage {
    /// To answer the claim: a snapshot, then the lock.
    Claim,
    /// Has answered the claim; the process decides.
    Claimed,
    /// Waits while the handler runs.
    Open,
    /// To roll back and begin a refusal's second claim.
    Again,
    /// To delete what has expired.
    Clear(Kind),
    /// To claim the place of the refusal and let it go.
    Mark,
    /// To insert the record.
    Insert(Kind),
    /// To commit.
    Commit(Kind),
    /// Has committed this record, or rolled back; the process is still to see it.
    Ended(Option<usize>),
}

/// Tells the key's effect from a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Effect,
    Refusal,
}

/// Says what one step of the server came to.
pub(crate) enum Next {
    Goes(Tx),
    Waits,
    Fails,
    Commits(Kind),
}

/// Holds what all other transactions together have in hand.
#[derive(Default)]
pub(crate) struct Others {
    pub(crate) locked: bool,
    pub(crate) placed: Set,
    pub(crate) deleted: Set,
}

impl Tx {
    pub(crate) fn begin(name: Name, request: Request, level: Level) -> Self {
        Self {
            name,
            request,
            level,
            stage: Stage::Claim,
            snapshot: None,
            locked: false,
            expired: false,
            placed: Set::default(),
            deleted: Set::default(),
        }
    }

    /// The transaction once it has ended: nothing is in its hand any more.
    pub(crate) fn ended(&self, committed: Option<usize>) -> Self {
        Self {
            stage: Stage::Ended(committed),
            ..Self::begin(self.name, self.request, self.level)
        }
    }

    /// Begins flight 2.
    pub(crate) fn keep(&mut self, kind: Kind, protocol: &Protocol) {
        if self.level == Level::Committed {
            self.snapshot = None;
        }
        self.stage = if self.expired && protocol.keeps(Without::Clearing) {
            Stage::Clear(kind)
        } else {
            self.after_clear(kind, protocol)
        };
    }

    fn after_clear(&self, kind: Kind, protocol: &Protocol) -> Stage {
        let marks = self.level == Level::Repeatable && protocol.keeps(Without::Mark);
        match kind {
            Kind::Effect if marks => Stage::Mark,
            _ => Stage::Insert(kind),
        }
    }

    /// Whether flight 2 is on its way: the server may finish it without its process.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(
            self.stage,
            Stage::Clear(_) | Stage::Mark | Stage::Insert(_) | Stage::Commit(_)
        )
    }

    /// Takes the server's next step. A statement takes two: its snapshot and its work.
    pub(crate) fn next(&self, answers: &[Answer], others: &Others, protocol: &Protocol) -> Next {
        let mut tx = self.clone();
        match self.stage {
            Stage::Claimed | Stage::Open | Stage::Ended(_) => return Next::Waits,
            Stage::Again => {
                tx = Self::begin(self.name, self.request, Level::Committed);
                if !protocol.keeps(Without::SecondClaim) {
                    tx.expired = self.expired;
                    tx.keep(Kind::Refusal, protocol);
                }
                return Next::Goes(tx);
            }
            Stage::Commit(kind) => return Next::Commits(kind),
            Stage::Claim | Stage::Clear(_) | Stage::Mark | Stage::Insert(_) => {}
        }
        let Some(snapshot) = self.snapshot else {
            let stored = |(place, answer): (usize, &Answer)| answer.stored.then_some(place);
            tx.snapshot = Some(answers.iter().enumerate().filter_map(stored).collect());
            return Next::Goes(tx);
        };
        let worked = match self.stage {
            Stage::Clear(kind) => {
                tx.stage = tx.after_clear(kind, protocol);
                tx.clear(snapshot, answers, others, protocol)
            }
            Stage::Mark => {
                tx.stage = Stage::Insert(Kind::Effect);
                tx.place(Kind::Refusal, answers, others, protocol)
            }
            Stage::Insert(kind) => {
                tx.stage = Stage::Commit(kind);
                if tx.is_guarded(kind, snapshot, answers) && protocol.keeps(Without::Guard) {
                    Work::Fails
                } else {
                    tx.place(kind, answers, others, protocol)
                }
            }
            _ => {
                tx.stage = Stage::Claimed;
                tx.locked = !others.locked || !protocol.keeps(Without::Lock);
                // The process still has to read what was found.
                return Next::Goes(tx);
            }
        };
        if tx.level == Level::Committed || matches!(tx.stage, Stage::Commit(_)) {
            tx.snapshot = None;
        }
        match worked {
            Work::Done => Next::Goes(tx),
            Work::Waits => Next::Waits,
            Work::Fails => Next::Fails,
        }
    }

    /// Deletes the effect and the request's refusal where they have expired.
    fn clear(
        &mut self,
        snapshot: Set,
        answers: &[Answer],
        others: &Others,
        protocol: &Protocol,
    ) -> Work {
        for (number, answer) in answers.iter().enumerate() {
            let matches = snapshot.has(number)
                && answer.concerns(self.request)
                && (!answer.live || !protocol.keeps(Without::Predicate));
            if !matches {
                continue;
            }
            if others.deleted.has(number) {
                return Work::Waits;
            }
            if answer.stored {
                self.deleted.add(number);
            } else if self.level == Level::Repeatable {
                return Work::Fails; // 40001: deleted since the snapshot
            }
        }
        Work::Done
    }

    /// Whether a live record of the other kind is seen: the refusal of this request beside the
    /// effect, or the effect beside a refusal.
    fn is_guarded(&self, kind: Kind, snapshot: Set, answers: &[Answer]) -> bool {
        answers.iter().enumerate().any(|(number, answer)| {
            snapshot.has(number)
                && !self.deleted.has(number)
                && answer.live
                && answer.kind != kind
                && answer.concerns(self.request)
        })
    }

    /// Puts a row in its place. The unique key looks at what is there now, whatever the snapshot.
    fn place(
        &mut self,
        kind: Kind,
        answers: &[Answer],
        others: &Others,
        protocol: &Protocol,
    ) -> Work {
        let place = place(kind, self.request);
        if protocol.keeps(Without::UniqueKey) {
            for (number, answer) in answers.iter().enumerate() {
                if answer.stored && answer.place() == place && !self.deleted.has(number) {
                    return if others.deleted.has(number) {
                        Work::Waits
                    } else {
                        Work::Fails // 23505
                    };
                }
            }
            if others.placed.has(place) {
                return Work::Waits;
            }
        }
        self.placed.add(place);
        Work::Done
    }
}

enum Work {
    Done,
    Waits,
    Fails,
}

impl Answer {
    /// Whether a lookup for this request selects the record.
    pub(crate) fn concerns(&self, request: Request) -> bool {
        self.kind == Kind::Effect || self.request == request
    }

    fn place(&self) -> usize {
        place(self.kind, self.request)
    }
}

/// Numbers the places under a key where the primary key allows one row each.
fn place(kind: Kind, request: Request) -> usize {
    match (kind, request) {
        (Kind::Effect, _) => 0,
        (Kind::Refusal, Request::A) => 1,
        (Kind::Refusal, Request::B) => 2,
    }
}

/// Holds a set of numbers below eight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Set(u8);

impl Set {
    pub(crate) fn add(&mut self, number: usize) {
        self.0 |= 1 << number;
    }

    pub(crate) fn has(self, number: usize) -> bool {
        self.0 & (1 << number) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<usize> for Set {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut set = Self::default();
        numbers.into_iter().for_each(|number| set.add(number));
        set
    }
}
