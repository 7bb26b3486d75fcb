//! The layer as its users see it: over scripted answers in virtual time, and over sockets that break.

mod keys;
mod limits;
mod outcomes;
mod script;
mod sockets;
