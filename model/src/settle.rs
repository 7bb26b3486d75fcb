//! Whether every key settles: once faults stop, every client gets its answer, whatever handlers say.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::{BuildHasher, RandomState},
};

use stateright::Model;

use crate::{protocol::Protocol, state::State, step::Action};

/// Holds what was found about settling. A state is settled if every client has a final answer and
/// nothing is under way.
#[derive(Debug)]
pub struct Settling {
    /// How many states there are.
    pub states: usize,
    /// How many of them are settled.
    pub settled: usize,
    /// From how many there is no way to a settled one without faults, expiry and sweeper, if
    /// handlers answer success from then on.
    pub stuck_on_success: usize,
    /// The same, if handlers refuse from then on.
    pub stuck_on_refusal: usize,
}

/// Explores every state, with all faults; then goes back from the settled ones along the steps
/// that are no faults.
#[must_use]
pub fn settle(protocol: &Protocol) -> Settling {
    let graph = Graph::explore(protocol);
    Settling {
        states: graph.settled.len(),
        settled: graph.settled.iter().filter(|settled| **settled).count(),
        stuck_on_success: graph.stuck(Step::Succeeds),
        stuck_on_refusal: graph.stuck(Step::Refuses),
    }
}

/// Holds all states by number, and which leads to which.
#[derive(Default)]
struct Graph {
    settled: Vec<bool>,
    steps: Vec<(u32, u32, Step)>,
    /// By their hashes, as the checker itself tells states apart.
    numbers: HashMap<u64, u32>,
    hasher: RandomState,
    unexplored: VecDeque<(u32, State)>,
}

/// Tells apart what happens when no fault does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Goes,
    Succeeds,
    Refuses,
}

impl Graph {
    fn explore(protocol: &Protocol) -> Self {
        let mut graph = Self::default();
        for state in protocol.init_states() {
            graph.meet(state);
        }
        while let Some((from, state)) = graph.unexplored.pop_front() {
            for (action, next) in protocol.next_steps(&state) {
                if !protocol.within_boundary(&next) {
                    continue;
                }
                let to = graph.meet(next);
                graph
                    .steps
                    .extend(Step::of(action).map(|step| (from, to, step)));
            }
        }
        graph
    }

    fn meet(&mut self, state: State) -> u32 {
        match self.numbers.entry(self.hasher.hash_one(&state)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let number = u32::try_from(self.settled.len()).unwrap_or(u32::MAX);
                new.insert(number);
                self.settled.push(state.is_settled());
                self.unexplored.push_back((number, state));
                number
            }
        }
    }

    /// Counts the states from which no settled one is within reach, if handlers answer like this.
    fn stuck(&self, answer: Step) -> usize {
        let mut reaches = self.settled.clone();
        let mut changed = true;
        while changed {
            changed = false;
            // Backwards: most steps lead to a state that was met later.
            for &(from, to, step) in self.steps.iter().rev() {
                let leads = (step == Step::Goes || step == answer)
                    && reaches.get(to as usize).is_some_and(|reaches| *reaches);
                if let Some(from) = reaches.get_mut(from as usize)
                    && leads
                    && !*from
                {
                    *from = true;
                    changed = true;
                }
            }
        }
        reaches.iter().filter(|reaches| !**reaches).count()
    }
}

impl Step {
    fn of(action: Action) -> Option<Self> {
        match action {
            Action::Succeed(_) => Some(Self::Succeeds),
            Action::Refuse(_) => Some(Self::Refuses),
            // What has lost its process ends by itself.
            Action::Ask(_)
            | Action::Serve(_)
            | Action::Decide(_)
            | Action::See(_)
            | Action::ServeStray(_)
            | Action::AbortStray(_)
            | Action::EndSweep => Some(Self::Goes),
            Action::Crash(_)
            | Action::Cut(_)
            | Action::Abort(_)
            | Action::Expire(_)
            | Action::Sweep(_)
            | Action::AbortSweep => None,
        }
    }
}
