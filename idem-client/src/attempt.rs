//! One attempt: sends the request, reads the whole answer, and judges whether a repeat makes sense.

use std::time::Duration;

use http::{Extensions, HeaderMap, StatusCode, header};
use reqwest::{Request, Response, ResponseBuilderExt, Url};
use reqwest_middleware::{Next, Result};
use serde::Deserialize;
use tokio::time::timeout;

use crate::error::Cause;
use crate::pause::retry_after;

/// The problem type with which a service says that a request with this key runs.
const IN_PROGRESS: &str = "urn:problem-type:idempotency:in-progress";

/// The one with which it says that the body did not arrive in time.
const BODY_TIMEOUT: &str = "urn:problem-type:idempotency:body-timeout";

/// What an attempt came to.
pub(crate) enum Attempt {
    /// Nothing that a repeat could change.
    Final(Response),
    /// Worth a repeat.
    Failed(Failure),
}

/// Why an attempt is to be repeated, and how long the service asks to wait.
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    pub(crate) retry_after: Option<Duration>,
}

/// Makes one attempt, in `time`.
///
/// An error is one that would come again: a redirect too many, a request that cannot be built, whatever another layer
/// fails with.
pub(crate) async fn attempt(
    request: Request,
    next: Next<'_>,
    extensions: &mut Extensions,
    time: Duration,
) -> Result<Attempt> {
    let answer = timeout(time, async {
        read_whole(next.run(request, extensions).await?).await
    });
    let error = match answer.await {
        Ok(Ok((response, body))) => return judge(response, body),
        Ok(Err(error)) => error,
        Err(_) => return Ok(failed(Cause::Timeout)),
    };
    match error {
        reqwest_middleware::Error::Reqwest(error) if is_worth_a_repeat(&error) => {
            // Logs and errors say where the request went, without the query.
            Ok(failed(Cause::Network(error.without_url())))
        }
        error => Err(error),
    }
}

fn failed(cause: Cause) -> Attempt {
    Attempt::Failed(Failure {
        cause,
        retry_after: None,
    })
}

/// Reads the body to its end, so that an answer that breaks off is noticed while it can still be repeated.
pub(crate) async fn read_whole(mut response: Response) -> Result<(Response, Vec<u8>)> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        body.extend_from_slice(&chunk);
    }
    Ok((response, body))
}

fn judge(response: Response, body: Vec<u8>) -> Result<Attempt> {
    let status = response.status();
    let says = |problem| problem_type(response.headers(), &body).as_deref() == Some(problem);
    let repeat = match status {
        StatusCode::REQUEST_TIMEOUT => says(BODY_TIMEOUT),
        StatusCode::CONFLICT => says(IN_PROGRESS),
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => true,
        _ => false,
    };
    if !repeat {
        let url = response.url().clone();
        return with_body(response, body, url).map(Attempt::Final);
    }
    Ok(Attempt::Failed(Failure {
        cause: Cause::Status(status),
        retry_after: retry_after(response.headers()),
    }))
}

/// Reads which problem a problem document is about.
pub(crate) fn problem_type(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Problem {
        r#type: String,
    }
    let media_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok()?.split(';').next());
    let is_problem =
        media_type.is_some_and(|text| text.trim().eq_ignore_ascii_case("application/problem+json"));
    let problem = is_problem.then(|| serde_json::from_slice::<Problem>(body).ok());
    Some(problem??.r#type)
}

/// Whether the error may be another one, or none, next time.
fn is_worth_a_repeat(error: &reqwest::Error) -> bool {
    !(error.is_builder() || error.is_redirect() || error.is_upgrade() || error.is_status())
}

/// Puts a body that was read back into its response, which came from `url`.
pub(crate) fn with_body(response: Response, body: Vec<u8>, url: Url) -> Result<Response> {
    let (parts, _) = http::Response::from(response).into_parts();
    let mut whole = http::Response::builder()
        .status(parts.status)
        .version(parts.version)
        .url(url)
        .body(body)
        .map_err(reqwest_middleware::Error::middleware)?;
    *whole.headers_mut() = parts.headers;
    whole.extensions_mut().extend(parts.extensions);
    Ok(whole.into())
}
