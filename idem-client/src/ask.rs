//! Asking before sending: what the service's status resource tells of a key.

use std::fmt::Write;
use std::time::Duration;

use http::{Extensions, HeaderName, HeaderValue, Method, StatusCode, header};
use reqwest::{Request, Response, Url};
use reqwest_middleware::{Next, Result};
use serde::Deserialize;

use crate::answer::Answer;
use crate::attempt::{Attempt, Failure, attempt, problem_type, read_whole, with_body};
use crate::error::{Cause, Error};
use crate::pause::retry_after;
use crate::retries::described;

/// The problem type with which a service says that it has nothing under this key.
const KEY_UNKNOWN: &str = "urn:problem-type:idempotency:key-unknown";

/// Put into a request's extensions, makes the layer ask what has become of the request's key before it sends the
/// request: after a crash, or before something old is tried again.
///
/// The question is `GET <resource>/<operation>/<key>?answer=true`, with the request's own headers, credentials among
/// them, but without those that belong to its body.
///
/// | what the service tells | what the layer does |
/// |---|---|
/// | an answer is stored | returns it, marked as a replay; the request is not sent |
/// | a request with this key runs | asks again, later: as long as `Retry-After` says, within deadline and budget |
/// | nothing is known under the key | sends the request, with this key, like any other |
/// | no answer, or 409, 429, 502, 503, 504 as for any request | asks again |
/// | anything else | [`Error::Unclear`]; the request is not sent |
///
/// The key is the one in the request's header, which the caller has stored; without one, nothing is asked
/// ([`Error::KeyMissing`]).
///
/// ```no_run
/// # async fn resume(client: reqwest_middleware::ClientWithMiddleware) -> Result<(), Box<dyn std::error::Error>> {
/// use idem_client::{Answer, AskFirst};
/// use reqwest::Url;
///
/// let status = AskFirst::at(Url::parse("https://pay.example/idempotency")?, "payments.create");
/// let answer = client
///     .post("https://pay.example/payments")
///     .bearer_auth("token")
///     .header("Idempotency-Key", "order-7") // as it was stored before the first attempt
///     .json(&[("amount", 1999)])
///     .with_extension(status)
///     .send()
///     .await?;
/// println!("{}, done before: {}", answer.status(), answer.is_replay());
/// # Ok(())
/// # }
/// ```
///
/// - The stored answer is that of whatever was sent with the key: nobody compares this request with it. A stored
///   refusal is returned too; a corrected request is to be sent without asking.
/// - A key whose lifetime is over is unknown. What may be that old needs another check than this one.
/// - Questions count as [attempts](Answer::attempts).
/// - Until it has an answer, the outcome of such a call [is unknown](crate::GaveUp::outcome_is_unknown): what it asks
///   about may have been done.
/// - The question has the key in its path. Errors, this layer's log, and the answer's URL (which is the request's) do not
///   show it; layers inside this one, `reqwest` where it logs redirects, and proxies see it.
#[derive(Clone, Debug)]
pub struct AskFirst {
    resource: Url,
    operation: String,
}

impl AskFirst {
    /// Takes where the service's status resource is, and what the service calls the operation: the name in its
    /// contract, or method and route pattern (`POST /payments`).
    #[must_use]
    pub fn at(resource: Url, operation: impl Into<String>) -> Self {
        Self {
            resource,
            operation: operation.into(),
        }
    }

    /// Makes the question about `request`, whose key stands in its header `name`.
    pub(crate) fn question(
        &self,
        request: &Request,
        name: &HeaderName,
        key: &HeaderValue,
    ) -> std::result::Result<Question, Error> {
        let key = key
            .to_str()
            .ok()
            .and_then(bare)
            .ok_or(Error::KeyMalformed)?;
        let base = self.resource.path().trim_end_matches('/');
        let about = format!("{base}/{}", encoded(&self.operation));

        let mut url = self.resource.clone();
        url.set_path(&format!("{about}/{}", encoded(&key)));
        url.set_query(Some("answer=true"));
        let mut question = Request::new(Method::GET, url);
        *question.timeout_mut() = request.timeout().copied();
        *question.version_mut() = request.version();
        *question.headers_mut() = request.headers().clone();
        for header in [name, &header::TRANSFER_ENCODING, &header::EXPECT] {
            question.headers_mut().remove(header);
        }
        let of_body = |name: &&HeaderName| name.as_str().starts_with("content-");
        for header in request.headers().keys().filter(of_body) {
            question.headers_mut().remove(header);
        }
        let described = described(&Method::GET, &self.resource, &format!("{about}/<key>"));
        Ok(Question {
            request: question,
            described,
            about: request.url().clone(),
        })
    }
}

/// What the layer sends first.
pub(crate) struct Question {
    request: Request,
    /// The question without its key.
    pub(crate) described: String,
    /// Where the request goes that this is about.
    about: Url,
}

/// What the service has told.
pub(crate) enum Told {
    Stored(Response),
    Unknown,
    /// Nothing yet.
    Failed(Failure),
}

impl Question {
    /// Asks once, in `time`.
    pub(crate) async fn ask(
        &self,
        next: Next<'_>,
        extensions: &mut Extensions,
        time: Duration,
    ) -> Result<Told> {
        // It has no body that could be a stream.
        let copy = self.request.try_clone().ok_or(Error::BodyStreams)?;
        let answer = attempt(copy, next, extensions, time);
        let response = match answer.await.map_err(without_url)? {
            Attempt::Final(response) => response,
            Attempt::Failed(failure) => return Ok(Told::Failed(failure)),
        };
        let (response, body) = read_whole(response).await.map_err(without_url)?;
        let status = response.status();
        if response.is_replay() {
            // It answers the request, and its own URL has the key in it.
            return with_body(response, body, self.about.clone()).map(Told::Stored);
        }
        if status == StatusCode::OK && is_running(&body) {
            return Ok(Told::Failed(Failure {
                cause: Cause::Running,
                retry_after: retry_after(response.headers()),
            }));
        }
        let problem = problem_type(response.headers(), &body);
        if status == StatusCode::NOT_FOUND && problem.as_deref() == Some(KEY_UNKNOWN) {
            return Ok(Told::Unknown);
        }
        Err(Error::Unclear {
            question: self.described.clone(),
            status,
        }
        .into())
    }
}

fn is_running(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Document {
        state: String,
    }
    serde_json::from_slice::<Document>(body).is_ok_and(|document| document.state == "running")
}

fn without_url(error: reqwest_middleware::Error) -> reqwest_middleware::Error {
    match error {
        reqwest_middleware::Error::Reqwest(error) => error.without_url().into(),
        error @ reqwest_middleware::Error::Middleware(_) => error,
    }
}

/// Takes off a header value's quotes and escapes: the key itself, as the resource knows it.
fn bare(value: &str) -> Option<String> {
    let value = value.trim_matches([' ', '\t']);
    let Some(quoted) = value.strip_prefix('"') else {
        return Some(value.to_owned());
    };
    let mut characters = quoted.strip_suffix('"')?.chars();
    let mut key = String::new();
    while let Some(character) = characters.next() {
        key.push(match character {
            '\\' => characters.next()?,
            '"' => return None,
            _ => character,
        });
    }
    Some(key)
}

/// Percent-encodes all that could mean something in a path.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_with_and_without_quotes() {
        for (value, key) in [
            ("order-7", Some("order-7")),
            (" order-7\t", Some("order-7")),
            (r#""order-7""#, Some("order-7")),
            (r#""a\"b\\c""#, Some(r#"a"b\c"#)),
            (r#""order-7"#, None),
            (r#"""#, None),
            (r#""a"b""#, None),
            (r#""a\""#, None),
        ] {
            assert_eq!(bare(value).as_deref(), key, "{value}");
        }
    }

    #[test]
    fn what_could_mean_something_in_a_path_is_encoded() {
        assert_eq!(encoded("POST /payments"), "POST%20%2Fpayments");
        assert_eq!(encoded("a%2F?#b-._~9"), "a%252F%3F%23b-._~9");
        assert_eq!(encoded("ö"), "%C3%B6");
    }
}
