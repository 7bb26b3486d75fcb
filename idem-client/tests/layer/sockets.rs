//! Connections that fail, over real sockets.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use idem_client::{Answer, Cause, Retries};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::script::{gave_up, retries};

const WHOLE: &str = "HTTP/1.1 201 Created\r\ncontent-length: 8\r\nx-mark: 1\r\n\r\n{\"id\":1}";

fn client(retries: Retries) -> ClientWithMiddleware {
    let soon = Duration::from_millis(5);
    ClientBuilder::new(reqwest::Client::new())
        .with(retries.backoff(soon, soon))
        .build()
}

/// Serves connection after connection: reads a request, sends the text, closes. Ends with the last text.
async fn service(texts: Vec<&'static str>) -> (SocketAddr, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move {
        let mut requests = Vec::new();
        for text in texts {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"BODY") {
                assert_ne!(socket.read_buf(&mut request).await.unwrap(), 0);
            }
            socket.write_all(text.as_bytes()).await.unwrap();
            requests.push(String::from_utf8(request).unwrap());
        }
        requests
    });
    (address, served)
}

#[tokio::test]
async fn an_answer_that_breaks_off_anywhere_is_repeated() {
    let texts = vec![
        "",
        &WHOLE[..11],
        &WHOLE[..30],
        &WHOLE[..WHOLE.len() - 8],
        &WHOLE[..WHOLE.len() - 1],
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "this is no HTTP\r\n\r\n",
        WHOLE,
    ];
    let (address, served) = service(texts).await;
    let client = client(retries());
    let url = format!("http://{address}/payments");
    let answer = client.post(&url).body("BODY").send().await.unwrap();
    assert_eq!(answer.attempts(), 8);
    assert_eq!(answer.status(), 201);
    assert_eq!(answer.url().as_str(), url);
    assert_eq!(answer.version(), http::Version::HTTP_11);
    assert_eq!(answer.remote_addr(), Some(address));
    assert_eq!(answer.headers()["x-mark"], "1");
    assert_eq!(answer.text().await.unwrap(), r#"{"id":1}"#);
    let requests = served.await.unwrap();
    assert!(requests[0].contains("idempotency-key: "));
    assert!(
        requests.iter().all(|request| *request == requests[0]),
        "{requests:#?}"
    );
}

#[tokio::test]
async fn a_broken_answer_leaves_the_outcome_unknown() {
    let (address, _served) = service(vec!["", ""]).await;
    // Two connections are cut, then nobody listens.
    let deadline = Duration::from_millis(300);
    let client = client(Retries::within(deadline));
    let request = client.post(format!("http://{address}/payments?token=hidden"));
    let error = request.body("BODY").send().await.unwrap_err();
    let call = gave_up(&error);
    assert!(call.outcome_is_unknown(), "{error}");
    assert!(call.attempts() > 2, "{error}");
    assert!(
        matches!(call.cause(), Cause::Network(error) if error.is_connect()),
        "{error}"
    );
    assert!(
        !format!("{error} {error:?}").contains("hidden"),
        "{error:?}"
    );
}

#[tokio::test]
async fn without_a_connection_nothing_was_done() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = client(Retries::within(Duration::from_millis(200)));
    let request = client.post(format!("http://{address}/payments"));
    let error = request.body("BODY").send().await.unwrap_err();
    let call = gave_up(&error);
    assert!(!call.outcome_is_unknown(), "{error}");
    assert!(call.attempts() > 1, "{error}");
    assert!(error.to_string().contains("Connection refused"), "{error}");
}

#[tokio::test]
async fn what_would_fail_again_is_returned_as_it_is() {
    let error = client(retries())
        .post("ftp://pay.example/")
        .send()
        .await
        .unwrap_err();
    assert!(error.is_builder(), "{error:?}");
}
