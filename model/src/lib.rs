//! An exhaustive model of the protocol: all that a few clients, their crashes and time can do to one key.
//!
//! `docs/model.md` says what is modelled, what is not, and what was found.

mod database;
mod properties;
mod protocol;
mod settle;
mod state;
mod step;
mod words;

pub use self::{
    protocol::{Level, Protocol, Request, Without},
    settle::{Settling, settle},
    state::State,
    step::Action,
    words::narrate,
};
