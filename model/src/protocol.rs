//! What a run of the model is about: who asks, how much may happen, and which rule of the protocol is left out.

/// Describes one key, the clients that use it, and the rules that they keep.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// One client each, with a process of its own.
    pub clients: Vec<(Request, Level)>,
    /// How many records may reach the end of their lifetime.
    pub expiries: usize,
    /// Whether expired records are deleted by a sweeper beside the requests.
    pub sweeper: bool,
    /// The rule that is broken, to see what it is good for.
    pub without: Option<Without>,
}

/// Tells two requests under one key apart: they differ in their fingerprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// One request.
    A,
    /// A corrected or a mistaken one.
    B,
}

/// Says which snapshots a request's transaction looks with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// READ COMMITTED: one snapshot for each statement.
    Committed,
    /// REPEATABLE READ, and what SERIALIZABLE has in common with it: one snapshot for all of them.
    Repeatable,
}

/// Names a rule of the protocol that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// A handler runs only under the key's lock.
    Lock,
    /// The record's INSERT fails beside the other kind of record.
    Guard,
    /// At most one record of a kind stands under the key: its primary key.
    UniqueKey,
    /// Only what has expired is cleared away.
    Predicate,
    /// A refusal is stored only after a second claim.
    SecondClaim,
    /// A claim for a refusal is made at READ COMMITTED, whatever the level of the handler.
    RefusalLevel,
    /// At the stricter levels an effect also claims its refusal's place.
    Mark,
    /// A record that has expired makes room for the next.
    Clearing,
    /// The transaction of a vanished process ends.
    Fences,
}

impl Protocol {
    /// Describes the protocol as it is, with a sweeper.
    #[must_use]
    pub fn new(clients: &[(Request, Level)], expiries: usize) -> Self {
        Self {
            clients: clients.to_vec(),
            expiries,
            sweeper: true,
            without: None,
        }
    }

    /// Leaves one rule out.
    #[must_use]
    pub fn without(mut self, rule: Without) -> Self {
        self.without = Some(rule);
        self
    }

    /// Leaves deleting expired records to the requests.
    #[must_use]
    pub fn unswept(mut self) -> Self {
        self.sweeper = false;
        self
    }

    pub(crate) fn keeps(&self, rule: Without) -> bool {
        self.without != Some(rule)
    }
}

impl Without {
    /// All rules, by the names that the command line gives them.
    pub const ALL: [(&'static str, Self); 9] = [
        ("lock", Self::Lock),
        ("guard", Self::Guard),
        ("unique-key", Self::UniqueKey),
        ("predicate", Self::Predicate),
        ("second-claim", Self::SecondClaim),
        ("refusal-level", Self::RefusalLevel),
        ("mark", Self::Mark),
        ("clearing", Self::Clearing),
        ("fences", Self::Fences),
    ];
}
