//! All that can happen next, and what comes of it.

use stateright::{Model, Property};

use crate::{
    database::{Kind, Next, Set, Stage, Tx},
    properties,
    protocol::{Protocol, Without},
    state::{State, Who},
};

/// Names one thing that happens. Clients, strays and records go by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client asks, or asks again, or its process claims again.
    Ask(usize),
    /// The server does the next part of a client's transaction.
    Serve(usize),
    /// A process reads what its claim brought, and decides.
    Decide(usize),
    /// A handler answers success.
    Succeed(usize),
    /// A handler answers a refusal.
    Refuse(usize),
    /// A process sees how flight 2 ended.
    See(usize),
    /// A process ends, a handler fails, or the answer to flight 2 is lost: all that was in memory
    /// is gone.
    Crash(usize),
    /// A process that has a refusal in memory loses its connection.
    Cut(usize),
    /// The server rolls back what a client's flight 2 asks for: 40001, 40P01, a session ended.
    Abort(usize),
    /// The server goes on with a transaction that has lost its process.
    ServeStray(usize),
    /// The server rolls such a transaction back.
    AbortStray(usize),
    /// A record's lifetime ends.
    Expire(usize),
    /// The sweeper deletes an expired record.
    Sweep(usize),
    /// The sweeper commits.
    EndSweep,
    /// The sweeper is rolled back.
    AbortSweep,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, client) in state.clients.iter().enumerate() {
            match client.tx.as_ref().map(|tx| tx.stage) {
                None => actions.push(Action::Ask(number)),
                Some(Stage::Claimed) => actions.push(Action::Decide(number)),
                Some(Stage::Open) => {
                    actions.extend([Action::Succeed(number), Action::Refuse(number)]);
                }
                Some(Stage::Ended(_)) => actions.push(Action::See(number)),
                Some(_) => actions.push(Action::Serve(number)),
            }
            if client.tx.as_ref().is_some_and(Tx::is_kept) {
                actions.push(Action::Abort(number));
            }
            if client.tx.is_some() || client.refused {
                actions.push(Action::Crash(number));
            }
            if client.tx.is_some() && client.refused {
                actions.push(Action::Cut(number));
            }
        }
        for (number, stray) in state.strays.iter().enumerate() {
            if stray.is_kept() {
                actions.push(Action::ServeStray(number));
            }
            if self.keeps(Without::Fences) {
                actions.push(Action::AbortStray(number));
            }
        }
        let expired = state.answers.iter().filter(|answer| !answer.live).count();
        for (number, answer) in state.answers.iter().enumerate() {
            if answer.live && expired < self.expiries {
                actions.push(Action::Expire(number));
            }
            if self.sweeper && !answer.live && answer.stored {
                actions.push(Action::Sweep(number));
            }
        }
        if !state.swept.is_empty() {
            actions.extend([Action::EndSweep, Action::AbortSweep]);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Ask(number) => {
                state.clients.get_mut(number)?.claim(self);
            }
            Action::Serve(number) => serve(&mut state, Who::Client(number), self)?,
            Action::ServeStray(number) => serve(&mut state, Who::Stray(number), self)?,
            Action::Decide(number) => state.decide(number, self),
            Action::Succeed(number) => {
                let client = state.clients.get_mut(number)?;
                client.tx.as_mut()?.keep(Kind::Effect, self);
            }
            Action::Refuse(number) => {
                let client = state.clients.get_mut(number)?;
                client.refused = self.keeps(Without::SecondClaim);
                client.tx.as_mut()?.stage = Stage::Again;
            }
            Action::See(number) => {
                let client = state.clients.get_mut(number)?;
                let request = client.request;
                if let Stage::Ended(Some(answer)) = client.tx.take()?.stage {
                    client.answered = true;
                    state.tell(request, answer);
                }
            }
            Action::Crash(number) => {
                state.part(number);
                state.clients.get_mut(number)?.refused = false;
            }
            Action::Cut(number) => state.part(number),
            Action::Abort(number) => abort(&mut state, Who::Client(number))?,
            Action::AbortStray(number) => abort(&mut state, Who::Stray(number))?,
            Action::Expire(number) => state.answers.get_mut(number)?.live = false,
            Action::Sweep(number) => {
                let nobody = Who::Stray(state.strays.len());
                if state.others(nobody).deleted.has(number) {
                    return None; // SKIP LOCKED
                }
                state.swept.add(number);
            }
            Action::EndSweep => {
                let swept = std::mem::take(&mut state.swept);
                state.delete(swept);
            }
            Action::AbortSweep => state.swept = Set::default(),
        }
        state.sort();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::ALL
            .into_iter()
            .map(|(name, holds)| Property::always(name, holds))
            .collect()
    }

    /// The protocol needs no bounds but those on time; a broken one may go on for ever.
    fn within_boundary(&self, state: &State) -> bool {
        self.without.is_none() || (state.answers.len() <= 5 && state.strays.len() <= 2)
    }
}

fn serve(state: &mut State, who: Who, protocol: &Protocol) -> Option<()> {
    let tx = state.tx(who)?;
    match tx.next(&state.answers, &state.others(who), protocol) {
        Next::Waits => return None,
        Next::Goes(tx) => state.replace(who, tx),
        Next::Fails => abort(state, who)?,
        Next::Commits(kind) => state.commit(who, kind),
    }
    Some(())
}

fn abort(state: &mut State, who: Who) -> Option<()> {
    let ended = state.tx(who)?.ended(None);
    state.replace(who, ended);
    Some(())
}
