//! Whether every key settles: from every state there is a way to one where every client has its answer.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::{BuildHasher, RandomState},
};

use stateright::Model;

use crate::{protocol::Protocol, state::State};

/// Holds what was found about settling.
#[derive(Debug)]
pub struct Settling {
    /// How many states there are.
    pub states: usize,
    /// How many of them are settled.
    pub settled: usize,
    /// How many of them have no way to a settled one.
    pub stuck: usize,
}

/// Explores every state, then goes back from the settled ones along the steps that led there.
#[must_use]
pub fn settle(protocol: &Protocol) -> Settling {
    let graph = Graph::explore(protocol);
    let settled = graph.reaches.iter().filter(|settled| **settled).count();
    let mut reaches = graph.reaches;
    let mut changed = true;
    while changed {
        changed = false;
        // Backwards: most steps lead to a state that was met later.
        for &(from, to) in graph.steps.iter().rev() {
            let reached = reaches.get(to as usize).is_some_and(|reached| *reached);
            if let Some(from) = reaches.get_mut(from as usize)
                && reached
                && !*from
            {
                *from = true;
                changed = true;
            }
        }
    }
    Settling {
        states: reaches.len(),
        settled,
        stuck: reaches.iter().filter(|reached| !**reached).count(),
    }
}

/// Holds all states by number, and what leads where.
#[derive(Default)]
struct Graph {
    /// Whether a settled state is known to be within reach; at first, whether this is one.
    reaches: Vec<bool>,
    steps: Vec<(u32, u32)>,
    /// By their hashes, as the checker itself tells states apart.
    numbers: HashMap<u64, u32>,
    hasher: RandomState,
    unexplored: VecDeque<(u32, State)>,
}

impl Graph {
    fn explore(protocol: &Protocol) -> Self {
        let mut graph = Self::default();
        for state in protocol.init_states() {
            graph.meet(state);
        }
        while let Some((from, state)) = graph.unexplored.pop_front() {
            for next in protocol.next_states(&state) {
                if protocol.within_boundary(&next) {
                    let to = graph.meet(next);
                    graph.steps.push((from, to));
                }
            }
        }
        graph
    }

    fn meet(&mut self, state: State) -> u32 {
        match self.numbers.entry(self.hasher.hash_one(&state)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let number = u32::try_from(self.reaches.len()).unwrap_or(u32::MAX);
                new.insert(number);
                self.reaches.push(state.is_settled());
                self.unexplored.push_back((number, state));
                number
            }
        }
    }
}
