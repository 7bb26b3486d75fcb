//! A proxy between client and service that cuts a share of the connections, each at a random byte.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Relays connections until it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    service: String,
    share: f64,
    connections: AtomicUsize,
    cuts: [AtomicUsize; 3],
    /// How long the latest request and answer were that went through whole.
    request: AtomicUsize,
    answer: AtomicUsize,
}

/// Where a connection is cut.
#[derive(Clone, Copy)]
enum Cut {
    /// When so many bytes of the request are through, and more are there.
    Request(usize),
    /// When the request is through, while the service works.
    Work,
    /// When so many bytes of the answer are through, and more are there.
    Answer(usize),
}

impl Proxy {
    pub(crate) async fn start(service: &str, share: f64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            service: service.to_owned(),
            share,
            connections: AtomicUsize::new(0),
            cuts: [const { AtomicUsize::new(0) }; 3],
            request: AtomicUsize::new(0),
            answer: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self {
            address,
            shared,
            accepting,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections were opened.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many connections were cut within the request, after it, and within the answer.
    pub(crate) fn cuts(&self) -> [usize; 3] {
        [0, 1, 2].map(|place| self.shared.cuts[place].load(Ordering::SeqCst))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(&shared);
        // What goes wrong on a connection is what the client is to cope with.
        tokio::spawn(async move { shared.relay(client).await });
    }
}

impl Shared {
    /// Relays one connection to its end, or to the byte at which it is cut.
    async fn relay(&self, mut client: TcpStream) -> io::Result<()> {
        let cut = self.cut();
        let mut service = TcpStream::connect(&self.service).await?;
        let (mut request, mut answer) = (0, 0);
        let (mut up, mut down) = ([0; 4096], [0; 4096]);
        let place = loop {
            tokio::select! {
                read = client.read(&mut up) => {
                    let arrived = &up[..read?];
                    if arrived.is_empty() {
                        self.request.store(request, Ordering::SeqCst);
                        self.answer.store(answer, Ordering::SeqCst);
                        return service.shutdown().await;
                    }
                    match cut {
                        Some(Cut::Request(length)) if request + arrived.len() > length => {
                            service.write_all(&arrived[..length - request]).await?;
                            break 0;
                        }
                        _ => service.write_all(arrived).await?,
                    }
                    request += arrived.len();
                    // The end of the JSON document.
                    if matches!(cut, Some(Cut::Work)) && arrived.ends_with(b"}") {
                        break 1;
                    }
                }
                read = service.read(&mut down) => {
                    let arrived = &down[..read?];
                    if arrived.is_empty() {
                        return client.shutdown().await;
                    }
                    match cut {
                        Some(Cut::Answer(length)) if answer + arrived.len() > length => {
                            client.write_all(&arrived[..length - answer]).await?;
                            break 2;
                        }
                        _ => client.write_all(arrived).await?,
                    }
                    answer += arrived.len();
                }
            }
        };
        self.cuts[place].fetch_add(1, Ordering::SeqCst);
        if fastrand::bool() {
            // A reset instead of an orderly end; it may overtake what was sent before it.
            client.set_zero_linger()?;
        }
        Ok(())
    }

    /// Decides whether and where a new connection is cut.
    fn cut(&self) -> Option<Cut> {
        let request = self.request.load(Ordering::SeqCst);
        let answer = self.answer.load(Ordering::SeqCst);
        if request == 0 || answer == 0 || fastrand::f64() >= self.share {
            return None;
        }
        Some(match fastrand::usize(..3) {
            0 => Cut::Request(fastrand::usize(..request)),
            1 => Cut::Work,
            _ => Cut::Answer(fastrand::usize(..answer)),
        })
    }
}
