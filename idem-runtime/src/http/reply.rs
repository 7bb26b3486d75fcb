//! Between an answer of actix and what is stored of it.

use std::time::Duration;

use actix_web::{
    HttpResponse, HttpResponseBuilder,
    body::{BodySize, BoxBody, MessageBody, to_bytes_limited},
    http::{
        StatusCode,
        header::{CONNECTION, HeaderMap, HeaderName, HeaderValue},
    },
};
use bytes::Bytes;

use crate::{
    model::{Headers, Snapshot, connection_names, is_stored},
    protocol::Mistake,
};

/// Marks an answer that comes from the record.
pub(crate) const REPLAYED: (&str, &str) = ("idempotent-replayed", "true");

/// Tells for how many seconds a record lives. A number of seconds, as in `Retry-After`, needs no
/// agreement about what time it is.
const LIFETIME: HeaderName = HeaderName::from_static("idempotency-lifetime");

/// Collects an answer's body within the limit and takes the snapshot that is stored.
pub(super) async fn collect(
    response: HttpResponse,
    limit: usize,
) -> Result<(HttpResponse, Snapshot), Mistake> {
    let (head, body) = response.into_parts();
    let streamed = matches!(body.size(), BodySize::Stream);
    let mut body = to_bytes_limited(body, limit)
        .await
        .map_err(|_| Mistake::AnswerTooLarge(limit))?
        .map_err(|_| Mistake::AnswerBroken)?;
    if streamed {
        // What was collected without knowing its length has room to spare, which a cache would keep.
        body = Bytes::copy_from_slice(&body);
    }
    let headers = stored_headers(head.headers());
    let snapshot = Snapshot {
        status: head.status().as_u16(),
        headers,
        body: body.clone(),
    };
    Ok((head.set_body(boxed(body)), snapshot))
}

/// Makes the answer of a repeat.
pub(super) fn replay(snapshot: &Snapshot) -> Option<HttpResponse> {
    let status = StatusCode::from_u16(snapshot.status).ok()?;
    let mut response = HttpResponseBuilder::new(status);
    for (name, value) in snapshot.headers.iter() {
        response.append_header((name, value));
    }
    response.append_header(REPLAYED);
    Some(response.body(boxed(snapshot.body.clone())))
}

/// Says for how many seconds the answer will be given again.
pub(super) fn advertising(mut answer: HttpResponse, lifetime: Option<Duration>) -> HttpResponse {
    if let Some(lifetime) = lifetime {
        let seconds = HeaderValue::from(lifetime.as_secs());
        answer.headers_mut().insert(LIFETIME, seconds);
    }
    answer
}

fn boxed(body: Bytes) -> BoxBody {
    if body.is_empty() {
        BoxBody::new(())
    } else {
        BoxBody::new(body)
    }
}

fn stored_headers(headers: &HeaderMap) -> Headers {
    let mut stored = Headers::new();
    for (name, value) in headers {
        let name = name.as_str();
        let mut connections = headers.get_all(CONNECTION);
        // Headers that `Connection` names belong to that one connection.
        if is_stored(name) && !connections.any(|value| connection_names(value.as_bytes(), name)) {
            // actix has checked names and values by the same rules.
            let _ = stored.push(name, value.as_bytes());
        }
    }
    stored
}
