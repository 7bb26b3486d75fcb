//! Everything at one moment: the clients' processes, transactions without one, the records, and what clients were told.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
};

use crate::{
    database::{Kind, Others, Set, Stage, Tx},
    protocol::{Level, Protocol, Request, Without},
};

/// Holds one moment of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Sorted, since it makes no difference which of two equal clients does what.
    pub(crate) clients: Vec<Client>,
    /// Transactions whose process has gone, or has turned away: sorted.
    pub(crate) strays: Vec<Tx>,
    /// Every record that was ever committed, in the order of the commits.
    pub(crate) answers: Vec<Answer>,
    /// What the sweeper has deleted, not yet committed.
    pub(crate) swept: Set,
    /// Whether a request was refused for another one while its own effect lived, of which it knew.
    pub(crate) forgotten: bool,
    /// Whether a request was refused for another one while an answer lived that it had been given.
    pub(crate) misdenied: bool,
}

/// Holds one client and the process that answers it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Client {
    pub(crate) name: Name,
    pub(crate) request: Request,
    pub(crate) level: Level,
    pub(crate) tx: Option<Tx>,
    /// Whether the process has a refusal in memory that is still to be stored.
    pub(crate) refused: bool,
    /// Whether the client's last question has had a final answer.
    pub(crate) answered: bool,
}

/// Says who somebody is, for a reader. Two states that differ in names alone are the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name(usize);

/// Holds one record and what has become of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    pub(crate) request: Request,
    /// Whether its row is in the table.
    pub(crate) stored: bool,
    /// Whether its lifetime lasts, with or without a row.
    pub(crate) live: bool,
    /// The requests that were answered because of it: its own with it, the other one with a 422.
    pub(crate) told: Set,
    /// The records before it whose lifetimes its own overlaps.
    pub(crate) beside: Set,
}

/// Names a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Client(usize),
    Stray(usize),
}

impl State {
    pub(crate) fn new(protocol: &Protocol) -> Self {
        let client = |(name, &(request, level)): (usize, &(Request, Level))| Client {
            name: Name(name),
            request,
            level,
            tx: None,
            refused: false,
            answered: false,
        };
        let mut clients: Vec<_> = protocol.clients.iter().enumerate().map(client).collect();
        clients.sort();
        Self {
            clients,
            strays: Vec::new(),
            answers: Vec::new(),
            swept: Set::default(),
            forgotten: false,
            misdenied: false,
        }
    }

    /// Whether every client has its answer and nothing is under way.
    pub(crate) fn is_settled(&self) -> bool {
        let quiet = |client: &Client| client.answered && client.tx.is_none() && !client.refused;
        self.clients.iter().all(quiet) && self.strays.is_empty() && self.swept.is_empty()
    }

    pub(crate) fn tx(&self, who: Who) -> Option<&Tx> {
        match who {
            Who::Client(number) => self.clients.get(number)?.tx.as_ref(),
            Who::Stray(number) => self.strays.get(number),
        }
    }

    /// Puts another transaction in this one's place; a stray that has ended is gone.
    pub(crate) fn replace(&mut self, who: Who, tx: Tx) {
        match who {
            Who::Client(number) => {
                if let Some(client) = self.clients.get_mut(number) {
                    client.tx = Some(tx);
                }
            }
            Who::Stray(number) if matches!(tx.stage, Stage::Ended(_)) => {
                self.strays.remove(number);
            }
            Who::Stray(number) => {
                if let Some(stray) = self.strays.get_mut(number) {
                    *stray = tx;
                }
            }
        }
    }

    /// What all transactions but one have in hand.
    pub(crate) fn others(&self, who: Who) -> Others {
        let clients = (0..self.clients.len()).map(Who::Client);
        let strays = (0..self.strays.len()).map(Who::Stray);
        let mut others = Others {
            deleted: self.swept,
            ..Others::default()
        };
        for tx in clients
            .chain(strays)
            .filter(|other| *other != who)
            .filter_map(|other| self.tx(other))
        {
            others.locked |= tx.locked;
            others.placed = others.placed.or(tx.placed);
            others.deleted = others.deleted.or(tx.deleted);
        }
        others
    }

    /// Makes a transaction's record part of the history, and takes out what it has deleted.
    pub(crate) fn commit(&mut self, who: Who, kind: Kind) {
        let Some(tx) = self.tx(who).cloned() else {
            return;
        };
        self.delete(tx.deleted);
        let live = |(number, answer): (usize, &Answer)| answer.live.then_some(number);
        let beside = self.answers.iter().enumerate().filter_map(live).collect();
        let number = self.answers.len();
        self.answers.push(Answer {
            kind,
            request: tx.request,
            stored: true,
            live: true,
            told: Set::default(),
            beside,
        });
        self.replace(who, tx.ended(Some(number)));
    }

    pub(crate) fn delete(&mut self, deleted: Set) {
        for (number, answer) in self.answers.iter_mut().enumerate() {
            answer.stored &= !deleted.has(number);
        }
    }

    /// Parts a client from its transaction, which lives on if anybody can notice.
    pub(crate) fn part(&mut self, number: usize) {
        let tx = self.clients.get_mut(number).and_then(|it| it.tx.take());
        self.strays
            .extend(tx.filter(|tx| tx.locked || tx.is_kept()));
    }

    /// Answers a request because of a record: with it, or with a 422.
    pub(crate) fn tell(&mut self, request: Request, number: usize) {
        if let Some(answer) = self.answers.get_mut(number) {
            answer.told.add(request as usize);
        }
    }

    /// Refuses a request because the key had its effect through another one.
    pub(crate) fn deny(&mut self, request: Request, effect: usize) {
        for answer in &self.answers {
            let contradicts = answer.request == request && answer.is_told() && answer.live;
            self.misdenied |= contradicts;
            self.forgotten |= contradicts && answer.kind == Kind::Effect;
        }
        self.tell(request, effect);
    }

    /// Decides what a claim leads to, as `decide` does.
    pub(crate) fn decide(&mut self, number: usize, protocol: &Protocol) {
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        let (request, Some(tx)) = (client.request, &mut client.tx) else {
            return;
        };
        let snapshot = tx.snapshot.unwrap_or_default();
        let (mut effect, mut refusal) = (None, None);
        for (number, answer) in self.answers.iter().enumerate() {
            if !snapshot.has(number) || !answer.concerns(request) {
                continue;
            }
            match answer.kind {
                _ if !answer.live => tx.expired = true,
                Kind::Effect => effect = Some((number, answer.request)),
                Kind::Refusal => refusal = Some(number),
            }
        }
        client.answered = true;
        let refused = std::mem::take(&mut client.refused);
        match (effect, refusal) {
            (Some((effect, of)), _) if of == request => self.tell(request, effect),
            (_, Some(refusal)) => self.tell(request, refusal),
            (Some((effect, _)), None) => self.deny(request, effect),
            (None, None) => {
                client.answered = false;
                if !tx.locked {
                    // A refusal stays in memory, for the next try.
                    client.refused = refused;
                    client.tx = None;
                } else if refused {
                    tx.keep(Kind::Refusal, protocol);
                } else {
                    tx.stage = Stage::Open;
                    if tx.level == Level::Committed {
                        tx.snapshot = None;
                    }
                }
                return;
            }
        }
        // Its rollback comes behind the answer.
        self.part(number);
    }

    /// Brings equal clients and strays into one order.
    pub(crate) fn sort(&mut self) {
        self.clients.sort();
        self.strays.sort();
    }
}

impl Client {
    /// Begins a claim.
    pub(crate) fn claim(&mut self, protocol: &Protocol) {
        let level = if self.refused && protocol.keeps(Without::RefusalLevel) {
            Level::Committed
        } else {
            self.level
        };
        self.answered = false;
        self.tx = Some(Tx::begin(self.name, self.request, level));
    }
}

impl Answer {
    /// Whether a client was answered with it.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told_to(self.request)
    }

    /// Whether this request was answered because of it.
    pub(crate) fn is_told_to(&self, request: Request) -> bool {
        self.told.has(request as usize)
    }
}

impl Name {
    pub(crate) fn is(self, other: Self) -> bool {
        self.0 == other.0
    }
}

impl PartialEq for Name {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}", self.0 + 1)
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.name, self.request)
    }
}
