//! One relayed connection: its two directions, and what each has to know of the other.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::sleep;

use super::frames::Frames;
use super::{Cut, Shared, Traffic};

/// Carries one connection until either side, or a fault, ends it.
pub(super) async fn relay(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.server_port)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let conversation = Conversation {
        shared,
        answered: Cell::new(true),
        owed: Cell::new(0),
        hushed: Cell::new(false),
    };
    tokio::select! {
        ended = conversation.forth(from_client, to_server) => ended,
        ended = conversation.back(from_server, to_client) => ended,
    }
}

/// Holds what the two directions of a connection know of each other.
struct Conversation<'a> {
    shared: &'a Shared,
    /// Whether an answer went to the client since it last sent something: its next message begins a flight.
    answered: Cell<bool>,
    /// How many `ReadyForQuery` the server still has to send.
    owed: Cell<usize>,
    /// Whether the client gets no further answer, and the connection ends with the server's last one.
    hushed: Cell<bool>,
}

impl Conversation<'_> {
    /// Passes the client's messages on; returns when the connection is to be closed.
    async fn forth(&self, mut client: ReadHalf<'_>, mut server: WriteHalf<'_>) -> io::Result<()> {
        let mut frames = Frames::of_client();
        while client.read_buf(frames.buffer()).await? > 0 {
            // Written in one piece, as they came: the server shall meet the same segments as without a relay.
            let mut burst = BytesMut::new();
            let mut cut = None;
            while let Some(frame) = frames.take()? {
                if self.shared.traffic() == Traffic::Vanishes {
                    continue;
                }
                if self.answered.replace(false) {
                    self.shared.flights.fetch_add(1, Ordering::SeqCst);
                }
                if frame.is_commit() {
                    cut = self.shared.take_cut();
                }
                if cut == Some(Cut::Before) {
                    break;
                }
                self.owed
                    .set(self.owed.get() + usize::from(frame.asks_for_ready()));
                burst.extend_from_slice(frame.bytes());
                if cut == Some(Cut::After) {
                    self.hushed.set(true);
                    break;
                }
            }
            server.write_all(&burst).await?;
            match cut {
                None => {}
                Some(Cut::Before) => return Ok(()),
                Some(Cut::After) => pending().await,
            }
        }
        Ok(())
    }

    /// Passes the server's messages on, late; returns when the connection is to be closed.
    async fn back(&self, mut server: ReadHalf<'_>, mut client: WriteHalf<'_>) -> io::Result<()> {
        let mut frames = Frames::of_server();
        loop {
            server.readable().await?;
            // What arrives meanwhile goes out with it: a burst of answers is late by the latency once.
            sleep(self.shared.latency()).await;
            let known = frames.buffer().len();
            if server.read_buf(frames.buffer()).await? == 0 {
                return Ok(());
            }
            let news = frames.buffer().get(known..).unwrap_or_default().to_vec();
            while let Some(frame) = frames.take()? {
                self.owed.set(
                    self.owed
                        .get()
                        .saturating_sub(usize::from(frame.is_ready())),
                );
            }
            if self.hushed.get() {
                if self.owed.get() == 0 {
                    return Ok(());
                }
            } else if self.shared.traffic() != Traffic::Vanishes {
                self.answered.set(true);
                client.write_all(&news).await?;
            }
        }
    }
}
