//! Retries that are safe: a layer for [`reqwest_middleware`] that names each operation once and repeats it until there
//! is a final answer.
//!
//! ```no_run
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use idem_client::{Answer, Retries};
//! use reqwest_middleware::ClientBuilder;
//!
//! let client = ClientBuilder::new(reqwest::Client::new())
//!     .with(Retries::within(Duration::from_secs(30)))
//!     .build();
//!
//! let answer = client
//!     .post("https://pay.example/payments")
//!     .header("Idempotency-Key", "order-7") // without one, the layer makes one
//!     .json(&[("amount", 1999)])
//!     .send()
//!     .await?;
//! println!("{}, replay: {}, attempts: {}", answer.status(), answer.is_replay(), answer.attempts());
//! # Ok(())
//! # }
//! ```
//!
//! It needs reqwest 0.13 and reqwest-middleware 0.5, the latter with its feature `json` for this example.
//!
//! # Which key
//!
//! The key names what is to be done, not the request: it must be the same however often that is tried.
//!
//! - **The number of something you have stored**, where it is done once for that: `order-7`. It survives a crash of
//!   your process and a second click.
//! - **A key of its own, stored before the first attempt**, where the same may be done several times:
//!   [`fresh_key`], saved with the intent. After a restart, send it again.
//! - **None**, where nobody repeats the operation after this call: the layer makes one (a version 7 UUID) and keeps it over the
//!   call's attempts. If the call ends without an answer, [`GaveUp::key`] is your last chance to store it.
//!
//! A header that you set is sent as it stands. It is never printed: not by the errors, not in logs.
//!
//! # What is repeated
//!
//! GET, HEAD, OPTIONS, TRACE, PUT and DELETE are idempotent by themselves and sent without a key, unless you give one.
//! Everything else, POST and PATCH above all, is sent with one. **Use the layer only with services that honour the
//! key**: one that ignores it does the work again at each attempt. A request to such an endpoint, like one whose answer
//! should arrive as a stream, is sent with the extension [`Bypass`]: the layer then leaves it alone.
//!
//! | what came back | |
//! |---|---|
//! | no connection, a broken or incomplete answer, none in time | repeated |
//! | 409 of the type `urn:problem-type:idempotency:in-progress`, 408 of the type `…:body-timeout` | repeated |
//! | 429, 502, 503, 504 | repeated |
//! | every other status, 500 and any other 408 and 409 among them | returned |
//! | a redirect too many, a request that cannot be built | returned |
//!
//! `Ok` is therefore always an answer that waiting does not change. (The service's own 408, 425 and 5xx leave the key
//! free: who thinks that another attempt may succeed sends the request again, with the same key.) What ends without one
//! is an [`Error`] inside [`reqwest_middleware::Error::Middleware`], for [`Error::of`] to find; it says what was tried,
//! how often, what came last, and whether the outcome is unknown.
//!
//! ```no_run
//! # use std::time::Duration;
//! # async fn pay(request: reqwest_middleware::RequestBuilder) -> Result<(), Box<dyn std::error::Error>> {
//! use idem_client::Error;
//!
//! match request.send().await {
//!     Ok(answer) => println!("{}", answer.status()),
//!     Err(error) => match Error::of(&error) {
//!         Some(Error::GaveUp(call)) if call.outcome_is_unknown() => { /* try again later, same key */ }
//!         _ => return Err(error.into()),
//!     },
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # After a crash
//!
//! Send the stored request again with its stored key, and it is done once. Where the service offers the status of keys,
//! the extension [`AskFirst`] makes the layer ask before it sends: an answer that is stored is returned without sending,
//! a request that runs is waited for, and only what the service knows nothing of is sent.
//!
//! # How often
//!
//! Three limits hold at once. Before each repeat there is a **pause**: random between nothing and a ceiling that doubles
//! each time, or as long as the service's `Retry-After` asks for, whichever is longer. The **deadline** covers the whole
//! call, attempts and pauses; a pause that would pass it is not begun. The **[`Budget`]** is shared by all calls: when
//! nearly everything fails, repeats stop, and a service that is down gets about a fifth above its usual load, not many
//! times as much.
//!
//! # Limits
//!
//! - Bodies must be repeatable: a stream is refused before anything is sent.
//! - Answers are read whole before they are returned, so that one that breaks off is repeated too. Downloads and event
//!   streams want [`Bypass`].
//! - Tokio only. Put the layer first, outside of others: what is added after it runs at every attempt.
//! - A total timeout set on the `reqwest` client or request ends each attempt, not the call.
//! - A repeat that arrives after the service has forgotten the key is a new operation: see its key lifetime.

mod answer;
mod ask;
mod attempt;
mod budget;
mod error;
mod key;
mod pause;
mod retries;

pub use answer::Answer;
pub use ask::AskFirst;
pub use budget::Budget;
pub use error::{Cause, Error, GaveUp, Limit};
pub use key::fresh_key;
pub use retries::{Bypass, Retries};
