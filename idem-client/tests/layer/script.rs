//! A service that answers what the test says: the innermost layer, so that time can be virtual.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Extensions, HeaderMap};
use idem_client::{Budget, Error, GaveUp, Retries};
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next, Result};

/// One answer of the service.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Answer {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: String,
    },
    /// None, ever.
    Silence,
}

/// Answers in order, the last step for ever, and remembers what it was sent.
#[derive(Clone)]
pub(crate) struct Script(Arc<Mutex<State>>);

struct State {
    steps: VecDeque<Step>,
    seen: Vec<HeaderMap>,
    lines: Vec<String>,
}

pub(crate) fn status(status: u16) -> Step {
    Step::Answer {
        status,
        headers: Vec::new(),
        body: String::new(),
    }
}

pub(crate) fn retry_after(code: u16, value: &str) -> Step {
    Step::Answer {
        status: code,
        headers: vec![("retry-after", value.to_owned())],
        body: String::new(),
    }
}

pub(crate) fn problem(status: u16, media_type: &str, body: &str) -> Step {
    Step::Answer {
        status,
        headers: vec![("content-type", media_type.to_owned())],
        body: body.to_owned(),
    }
}

pub(crate) fn in_progress() -> Step {
    let body = r#"{"type":"urn:problem-type:idempotency:in-progress","title":"Request in progress","status":409}"#;
    problem(409, "application/problem+json", body)
}

/// A layer with a minute, and with more budget than a test of something else uses.
pub(crate) fn retries() -> Retries {
    Retries::within(Duration::from_secs(60)).budget(Budget::new(100, 10_000))
}

/// A client whose service plays `steps`.
pub(crate) fn client(
    retries: Retries,
    steps: impl IntoIterator<Item = Step>,
) -> (ClientWithMiddleware, Script) {
    let script = Script(Arc::new(Mutex::new(State {
        steps: steps.into_iter().collect(),
        seen: Vec::new(),
        lines: Vec::new(),
    })));
    let client = ClientBuilder::new(reqwest::Client::new())
        .with(retries)
        .with(script.clone())
        .build();
    (client, script)
}

pub(crate) fn gave_up(error: &reqwest_middleware::Error) -> &GaveUp {
    match Error::of(error) {
        Some(Error::GaveUp(call)) => call,
        _ => panic!("{error:?}"),
    }
}

impl Script {
    /// The headers of each request, in order.
    pub(crate) fn seen(&self) -> Vec<HeaderMap> {
        self.0.lock().unwrap().seen.clone()
    }

    /// Method and URL of each request, in order.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().lines.clone()
    }

    pub(crate) fn requests(&self) -> usize {
        self.0.lock().unwrap().seen.len()
    }
}

#[async_trait::async_trait]
impl Middleware for Script {
    async fn handle(&self, request: Request, _: &mut Extensions, _: Next<'_>) -> Result<Response> {
        let step = {
            let mut state = self.0.lock().unwrap();
            state.seen.push(request.headers().clone());
            let line = format!("{} {}", request.method(), request.url());
            state.lines.push(line);
            let step = state.steps.pop_front().unwrap();
            if state.steps.is_empty() {
                state.steps.push_back(step.clone());
            }
            step
        };
        match step {
            Step::Answer {
                status,
                headers,
                body,
            } => {
                let mut answer = http::Response::builder().status(status);
                for (name, value) in headers {
                    answer = answer.header(name, value);
                }
                Ok(answer.body(body).unwrap().into())
            }
            Step::Silence => std::future::pending().await,
        }
    }
}
