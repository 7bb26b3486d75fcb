//! HTTP/1.1 over a bare socket, for requests that no client would send and for clients that hang up.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, ToSocketAddrs};

/// Holds one connection to a server; dropped, it closes in the ordinary way.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// What was received beyond the last answer.
    pending: Vec<u8>,
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// When nobody listens there.
    pub async fn open(address: impl ToSocketAddrs) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            pending: Vec::new(),
        })
    }

    /// Sends bytes as they stand.
    ///
    /// # Errors
    /// When the server has closed the connection.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    /// Receives one answer; several on one connection come one a call.
    ///
    /// The body is as long as its head says: by `Transfer-Encoding`, by `Content-Length`, else up to the end of the
    /// connection. Interim answers (100) are answers of their own.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the connection ends before the answer does,
    /// [`io::ErrorKind::InvalidData`] when it is no HTTP/1.1.
    pub async fn receive(&mut self) -> io::Result<Answer> {
        let head = self.until(b"\r\n\r\n").await?;
        let mut answer = Answer::from_head(&head)?;
        answer.body = if answer.status < 200 || matches!(answer.status, 204 | 304) {
            Vec::new()
        } else if answer
            .header("transfer-encoding")
            .is_some_and(|coding| coding.ends_with("chunked"))
        {
            self.chunks().await?
        } else if let Some(length) = answer.header("content-length") {
            let length = length.parse().map_err(|_| malformed())?;
            self.exactly(length).await?
        } else {
            self.rest().await?
        };
        Ok(answer)
    }

    /// Closes the sending side only: the server sees the end of the request and may still answer.
    ///
    /// # Errors
    /// When the connection is closed already.
    pub async fn fin(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }

    /// Closes with a reset, as a client does that crashes or runs out of patience.
    ///
    /// # Errors
    /// When the system refuses the socket option.
    pub fn reset(self) -> io::Result<()> {
        self.stream.set_zero_linger()
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.until(b"\r\n").await?;
            let size = str::from_utf8(&line)
                .ok()
                .and_then(|line| line.split([';', '\r']).next());
            let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
            match size.ok_or_else(malformed)? {
                0 => break,
                size => body.extend(self.exactly(size).await?),
            }
            if self.exactly(2).await? != b"\r\n" {
                return Err(malformed());
            }
        }
        // Trailers, up to the empty line.
        while self.until(b"\r\n").await? != b"\r\n" {}
        Ok(body)
    }

    /// Takes everything up to and including `end`.
    async fn until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            let found = self
                .pending
                .windows(end.len())
                .position(|window| window == end);
            if let Some(position) = found {
                let rest = self.pending.split_off(position + end.len());
                return Ok(std::mem::replace(&mut self.pending, rest));
            }
            self.more().await?;
        }
    }

    async fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.pending.len() < length {
            self.more().await?;
        }
        let rest = self.pending.split_off(length);
        Ok(std::mem::replace(&mut self.pending, rest))
    }

    async fn rest(&mut self) -> io::Result<Vec<u8>> {
        self.stream.read_to_end(&mut self.pending).await?;
        Ok(std::mem::take(&mut self.pending))
    }

    async fn more(&mut self) -> io::Result<()> {
        if self.stream.read_buf(&mut self.pending).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

/// Is what a server answered, header lines in order and repeated names kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Names in lower case, values with each byte as the character of the same number.
    pub headers: Vec<(String, String)>,
    /// The body without its transfer encoding, any content encoding left on.
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns the first value of a header, named in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.header_values(name).next()
    }

    /// Returns all values of a header, named in lower case, in the order they came.
    pub fn header_values(&self, name: &str) -> impl Iterator<Item = &str> {
        let lines = self.headers.iter();
        lines.filter_map(move |(known, value)| (known == name).then_some(value.as_str()))
    }

    fn from_head(head: &[u8]) -> io::Result<Self> {
        let head: String = head.iter().copied().map(char::from).collect();
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
        let status = status.and_then(|line| line.get(..3)?.parse().ok());
        let headers = lines
            .filter(|line| !line.is_empty())
            .map(|line| {
                let (name, value) = line.split_once(':').ok_or_else(malformed)?;
                Ok((name.to_ascii_lowercase(), value.trim().to_owned()))
            })
            .collect::<io::Result<_>>()?;
        Ok(Self {
            status: status.ok_or_else(malformed)?,
            headers,
            body: Vec::new(),
        })
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not an HTTP/1.1 answer")
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn answers_on_one_connection_come_one_by_one() {
        let mut connection = answered_with(
            b"HTTP/1.1 100 Continue\r\n\r\n\
              HTTP/1.1 201 Created\r\nLink: a\r\nContent-Length: 3\r\nlink:b\r\n\r\n\x00\xffc\
              HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\nA\r\n, world!\r\n\r\n0\r\nTrailer: t\r\n\r\n\
              HTTP/1.1 204 No Content\r\n\r\n\
              HTTP/1.1 200 OK\r\n\r\nto the end",
        )
        .await;
        assert_eq!(connection.receive().await.unwrap().status, 100);
        let created = connection.receive().await.unwrap();
        assert_eq!(
            (created.status, created.body.as_slice()),
            (201, &b"\x00\xffc"[..])
        );
        assert_eq!(
            created.header_values("link").collect::<Vec<_>>(),
            ["a", "b"]
        );
        assert_eq!(
            connection.receive().await.unwrap().body,
            b"hello, world!\r\n"
        );
        assert_eq!(connection.receive().await.unwrap().status, 204);
        assert_eq!(connection.receive().await.unwrap().body, b"to the end");
    }

    #[tokio::test]
    async fn truncated_and_malformed_answers_are_errors() {
        for (bytes, kind) in [
            (&b""[..], io::ErrorKind::UnexpectedEof),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
                io::ErrorKind::UnexpectedEof,
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
                io::ErrorKind::UnexpectedEof,
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
                io::ErrorKind::InvalidData,
            ),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
                io::ErrorKind::InvalidData,
            ),
            (b"SSH-2.0\r\n\r\n", io::ErrorKind::InvalidData),
        ] {
            let error = answered_with(bytes).await.receive().await.unwrap_err();
            assert_eq!(error.kind(), kind, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[tokio::test]
    async fn reset_is_seen_as_one_and_a_closed_sending_side_as_an_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();

        let connection = Connection::open(address).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        connection.reset().unwrap();
        assert_eq!(
            server.read_u8().await.unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );

        let mut connection = Connection::open(address).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        connection.send("bye").await.unwrap();
        connection.fin().await.unwrap();
        let mut request = String::new();
        server.read_to_string(&mut request).await.unwrap();
        assert_eq!(request, "bye");
        server
            .write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(connection.receive().await.unwrap().status, 400);
    }

    async fn answered_with(bytes: &'static [u8]) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connection = Connection::open(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            server.write_all(bytes).await.unwrap();
        });
        connection
    }
}
