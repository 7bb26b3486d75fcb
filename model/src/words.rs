//! A path through the model in words.

use stateright::{Model, Path};

use crate::{
    database::{Kind, Stage, Tx},
    protocol::Protocol,
    state::{Client, State, Who},
    step::Action,
};

/// Tells what happens, one line a step, from the beginning to the first state that has the flaw.
#[must_use]
pub fn narrate(
    protocol: &Protocol,
    path: Path<State, Action>,
    holds: impl Fn(&State) -> bool,
) -> Vec<String> {
    path.into_vec()
        .into_iter()
        .take_while(|(state, _)| holds(state))
        .filter_map(|(state, action)| {
            let action = action?;
            let next = protocol.next_state(&state, action)?;
            say(&state, action, &next)
        })
        .collect()
}

fn say(state: &State, action: Action, next: &State) -> Option<String> {
    Some(match action {
        Action::Ask(number) => {
            let client = state.clients.get(number)?;
            if client.refused {
                format!("{client} claims the key again for its refusal")
            } else {
                format!("{client} asks")
            }
        }
        Action::Serve(number) => format!(
            "{}: {}",
            state.clients.get(number)?,
            served(state, Who::Client(number), next)?
        ),
        Action::ServeStray(number) => format!(
            "{}: {}",
            lost(state.strays.get(number)?),
            served(state, Who::Stray(number), next)?
        ),
        Action::Decide(number) => {
            let client = state.clients.get(number)?;
            let after = next.clients.iter().find(|it| it.name.is(client.name))?;
            format!("{client} {}", decided(after))
        }
        Action::Succeed(number) => {
            format!("{}'s handler succeeds", state.clients.get(number)?)
        }
        Action::Refuse(number) => format!("{}'s handler refuses", state.clients.get(number)?),
        Action::See(number) => {
            let client = state.clients.get(number)?;
            match client.tx.as_ref()?.stage {
                Stage::Ended(Some(answer)) => format!("{client} is told answer {answer}"),
                _ => format!("{client} sees the rollback"),
            }
        }
        Action::Crash(number) => format!("{}'s process is gone", state.clients.get(number)?),
        Action::Cut(number) => format!("{}'s connection is lost", state.clients.get(number)?),
        Action::Abort(number) => {
            format!("{}: the server rolls back", state.clients.get(number)?)
        }
        Action::AbortStray(number) => {
            format!("{}: the server rolls back", lost(state.strays.get(number)?))
        }
        Action::Expire(number) => format!("answer {number} expires"),
        Action::Sweep(number) => format!("the sweeper deletes answer {number}"),
        Action::EndSweep => "the sweeper commits".to_owned(),
        Action::AbortSweep => "the sweeper is rolled back".to_owned(),
    })
}

/// What one step of the server is.
fn served(state: &State, who: Who, next: &State) -> Option<String> {
    let tx = state.tx(who)?;
    let is = |other: &&Tx| other.name.is(tx.name);
    let mut after = next.clients.iter().filter_map(|client| client.tx.as_ref());
    let failed = match who {
        Who::Client(_) => matches!(after.find(is)?.stage, Stage::Ended(None)),
        Who::Stray(_) => {
            next.answers.len() == state.answers.len() && next.strays.len() < state.strays.len()
        }
    };
    let text = match tx.stage {
        Stage::Commit(kind) => {
            let kind = match kind {
                Kind::Effect => "effect",
                Kind::Refusal => "refusal",
            };
            return Some(format!("COMMIT: answer {}, {kind}", state.answers.len()));
        }
        Stage::Again => "ROLLBACK",
        _ if tx.snapshot.is_none() => "the statement's snapshot",
        Stage::Claim if state.others(who).locked => "the lock, held by another",
        Stage::Claim => "the lock",
        Stage::Clear(_) => "DELETE of what has expired",
        Stage::Mark => "INSERT and DELETE in the refusal's place",
        Stage::Insert(_) => "INSERT",
        Stage::Claimed | Stage::Open | Stage::Ended(_) => "nothing",
    };
    Some(format!("{text}{}", if failed { " fails" } else { "" }))
}

fn decided(client: &Client) -> &'static str {
    match client.tx.as_ref().map(|tx| tx.stage) {
        _ if client.answered => "is answered from a record",
        None => "finds the key in use",
        Some(Stage::Open) => "runs its handler",
        Some(_) => "stores its refusal",
    }
}

fn lost(tx: &Tx) -> String {
    format!("the lost transaction of {}", tx.name)
}
