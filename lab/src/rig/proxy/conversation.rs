//! One relayed connection: its two directions, and what each has to know of the other.

use std::{
    io,
    sync::{Mutex, PoisonError},
};

use bytes::BytesMut;
use idem_tests::relay::frames::{Frame, Frames};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
};

use super::{At, Cut, Shared, Traffic};

/// Carries one connection until either side, or a fault, ends it.
pub(super) async fn relay(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut server = TcpStream::connect(shared.server()).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut traffic = shared.traffic.subscribe();
    // A change that came before the connection does not concern it.
    if *traffic.borrow_and_update() == Traffic::Refused {
        return Ok(());
    }
    let mut refused = async || {
        loop {
            // A short refusal may be over before it is looked at.
            if traffic.changed().await.is_err() || *traffic.borrow() != Traffic::Vanishes {
                return;
            }
        }
    };
    let state = State::default();
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::select! {
        () = refused() => {}
        _ = forth(shared, &state, from_client, to_server) => {}
        _ = back(shared, &state, from_server, to_client) => {}
    }
    // Half of the cuts are resets.
    if fastrand::bool() {
        client.set_zero_linger()?;
    }
    Ok(())
}

/// What the two directions know of each other.
#[derive(Debug, Default)]
struct State {
    /// How many `ReadyForQuery` the server still has to send.
    owed: Mutex<usize>,
    /// Set once the connection is to end.
    end: Mutex<Option<End>>,
}

/// How a connection ends: the answers to what was sent before still pass, and then this much.
#[derive(Debug)]
struct End {
    /// How many `ReadyForQuery` are still to pass.
    before: usize,
    /// How many bytes pass of the answer that comes next; none is waited for if there is none.
    bytes: Option<usize>,
}

/// Passes the client's messages on; returns when the connection is to be closed.
async fn forth(
    shared: &Shared,
    state: &State,
    mut client: ReadHalf<'_>,
    mut server: WriteHalf<'_>,
) -> io::Result<()> {
    let mut frames = Frames::of_client();
    while client.read_buf(frames.buffer()).await? > 0 {
        let mut burst = BytesMut::new();
        let mut cut = None;
        // What was sent in one piece arrives whole or not at all, as a segment does.
        let vanishes = shared.traffic() == Traffic::Vanishes;
        while let Some(frame) = frames.take()? {
            if vanishes {
                continue;
            }
            cut = statement(&frame).and_then(|at| shared.cut_at(at));
            let before = *lock(&state.owed);
            if let Some(Cut::Answer(bytes)) = cut {
                *lock(&state.end) = Some(End {
                    before,
                    bytes: Some(bytes),
                });
            }
            if cut == Some(Cut::Before) {
                *lock(&state.end) = Some(End {
                    before,
                    bytes: None,
                });
                break;
            }
            *lock(&state.owed) += usize::from(frame.asks_for_ready());
            burst.extend_from_slice(frame.bytes());
            if cut.is_some() {
                break;
            }
        }
        server.write_all(&burst).await?;
        match cut {
            None => {}
            Some(Cut::After) => return Ok(()),
            Some(Cut::Before) if *lock(&state.owed) == 0 => return Ok(()),
            // The other direction ends it.
            Some(Cut::Before | Cut::Answer(_)) => std::future::pending().await,
        }
    }
    // In a black hole not even the end of a connection arrives.
    let mut traffic = shared.traffic.subscribe();
    let _ = traffic
        .wait_for(|traffic| *traffic != Traffic::Vanishes)
        .await;
    Ok(())
}

/// Passes the server's messages on; returns when the connection is to be closed.
async fn back(
    shared: &Shared,
    state: &State,
    mut server: ReadHalf<'_>,
    mut client: WriteHalf<'_>,
) -> io::Result<()> {
    let mut frames = Frames::of_server();
    while server.read_buf(frames.buffer()).await? > 0 {
        let mut news = BytesMut::new();
        let mut ends = false;
        while let Some(frame) = frames.take()? {
            let mut end = lock(&state.end);
            match &mut *end {
                Some(End {
                    before: 0,
                    bytes: Some(bytes),
                }) => {
                    let passing = frame.bytes().len().min(*bytes);
                    *bytes -= passing;
                    news.extend_from_slice(frame.bytes().get(..passing).unwrap_or_default());
                    // Also when the whole answer was shorter.
                    ends = *bytes == 0 || frame.is_ready();
                }
                Some(End { before, bytes }) if frame.is_ready() => {
                    *before = before.saturating_sub(1);
                    news.extend_from_slice(frame.bytes());
                    ends = *before == 0 && bytes.is_none();
                }
                _ => news.extend_from_slice(frame.bytes()),
            }
            drop(end);
            let mut owed = lock(&state.owed);
            *owed = owed.saturating_sub(usize::from(frame.is_ready()));
            if ends {
                break;
            }
        }
        if shared.traffic() != Traffic::Vanishes {
            client.write_all(&news).await?;
        }
        if ends {
            return Ok(());
        }
    }
    Ok(())
}

/// Names the statement, if rules can be about it.
fn statement(frame: &Frame) -> Option<At> {
    match frame.query()? {
        b"COMMIT" => Some(At::Commit),
        b"ROLLBACK" => Some(At::Rollback),
        text if text.starts_with(b"BEGIN") => Some(At::Begin),
        _ => None,
    }
}

fn lock<T>(state: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
