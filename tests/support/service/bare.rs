//! Requests over a bare socket, for what no HTTP client would send.

use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use tokio::time::timeout;

use super::{Client, Reply};
use crate::raw_http::{Answer, Connection};

impl Client {
    /// Opens a connection to the service.
    pub async fn connect(&self) -> Connection {
        Connection::open(self.address()).await.unwrap()
    }

    /// Sends bytes as they stand and receives one answer.
    pub async fn raw(&self, request: impl AsRef<[u8]>) -> Reply {
        let mut connection = self.connect().await;
        connection.send(request).await.unwrap();
        connection.reply().await
    }
}

impl Connection {
    /// Receives one answer of the service.
    pub async fn reply(&mut self) -> Reply {
        let answer = timeout(Duration::from_secs(60), self.receive()).await;
        answer.expect("an answer in time").unwrap().into()
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        let headers = answer.headers.iter().map(|(name, value)| {
            // The characters of a raw answer stand for its bytes.
            let value: Vec<u8> = value.chars().map(|byte| byte as u8).collect();
            (
                name.parse::<HeaderName>().unwrap(),
                HeaderValue::from_bytes(&value).unwrap(),
            )
        });
        Self {
            status: answer.status,
            headers: headers.collect(),
            body: answer.body.into(),
        }
    }
}

/// Puts a POST by account `a` together, with the header lines and the body as they stand.
#[must_use]
pub fn post(path: &str, lines: &[&str], body: impl AsRef<[u8]>) -> Vec<u8> {
    let mut head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nX-Account: a\r\n");
    for line in lines.iter().chain(&[""]) {
        head.push_str(line);
        head.push_str("\r\n");
    }
    [head.as_bytes(), body.as_ref()].concat()
}
