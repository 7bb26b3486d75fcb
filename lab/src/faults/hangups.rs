//! F11, F13 and F15: clients that hang up, dawdle, or send what is no request.

use std::{
    io::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use flate2::{Compression, write::GzEncoder};
use futures_util::{StreamExt, future::join_all, stream};
use idem_tests::raw_http::Connection;
use tokio::time::{sleep, timeout};

use super::{
    Lab,
    client::{Client, bytes},
    history::{Outcome, Request},
    load::percentile,
    trial::{Allowing, Plan, Trial, Verdict, fresh},
};
use crate::{Fallible, service::Order};

/// How a client hangs up.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// It ends its side, and goes.
    Fin,
    /// It resets the connection.
    Reset,
    /// It closes, with whatever it has not read.
    Close,
}

/// When a client hangs up: after a part of its request, or some time after all of it.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// After this share of the request's bytes.
    Sent(f64),
    /// So long after the whole request.
    Waited(Duration),
    /// When the answer has come, unread.
    Answered,
}

const POINTS: [Point; 10] = [
    Point::Sent(0.2),
    Point::Sent(0.7),
    Point::Sent(0.97),
    Point::Waited(Duration::ZERO),
    Point::Waited(Duration::from_micros(300)),
    Point::Waited(Duration::from_millis(1)),
    Point::Waited(Duration::from_millis(3)),
    Point::Waited(Duration::from_millis(8)),
    Point::Waited(Duration::from_millis(15)),
    Point::Answered,
];

/// F11: clients hang up at ten points, in three ways, and ask again; what a handler has begun is done whether they do
/// or not.
pub(super) async fn hang_ups(lab: &Lab) -> Fallible<Verdict> {
    let mut trial = Trial::begin(lab, "F11", Plan::default()).await?;
    for _ in 0..lab.times(30, 300) {
        let mut clients = Vec::new();
        for point in POINTS {
            for way in [Way::Fin, Way::Reset, Way::Close] {
                let length = trial.rng.u64(0..12);
                let request = trial.fresh("/pay", Order::sleeping(length));
                clients.push((point, way, request, trial.rng.fork()));
            }
        }
        let client = &trial.client;
        let hung_up = stream::iter(clients).map(async |(point, way, request, mut rng)| {
            hang_up(client, &request, point, way).await?;
            if rng.bool() {
                client
                    .finish(&request, Duration::from_secs(5), &mut rng)
                    .await;
            }
            Fallible::Ok(())
        });
        let hung_up: Vec<_> = hung_up.buffer_unordered(10).collect().await;
        hung_up.into_iter().collect::<Fallible<Vec<()>>>()?;
    }
    trial.expect_done().await?;
    trial.end(Allowing::default()).await
}

async fn hang_up(client: &Client, request: &Arc<Request>, point: Point, way: Way) -> Fallible<()> {
    let mut connection = client.line(0).open().await?;
    let number = client.history.invoke(request);
    let bytes = bytes(request, number, "");
    match point {
        Point::Sent(share) => {
            let part = (bytes.len() as f64 * share) as usize;
            connection
                .send(bytes.get(..part).unwrap_or_default())
                .await?;
            sleep(Duration::from_millis(2)).await;
        }
        Point::Waited(time) => {
            connection.send(&bytes).await?;
            sleep(time).await;
        }
        Point::Answered => {
            connection.send(&bytes).await?;
            // Handlers take 12 ms at most, and wait for a place in the pool.
            sleep(Duration::from_millis(60)).await;
        }
    }
    client.history.fault(&format!("{way:?} at {point:?}"));
    match way {
        Way::Fin => {
            // The other side may have closed first.
            let _ = connection.fin().await;
            sleep(Duration::from_millis(1)).await;
        }
        Way::Reset => connection.reset()?,
        Way::Close => drop(connection),
    }
    client.history.returned(
        number,
        &Outcome::Lost(format!("hung up: {way:?} at {point:?}")),
    );
    Ok(())
}

/// F13: 500 clients send a byte a second. They take no database connection, and others hardly notice.
pub(super) async fn slow_clients(lab: &Lab) -> Fallible<Verdict> {
    let plan = Plan {
        // Those who dawdle in the head are to stay.
        head_timeout: Duration::from_secs(60),
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F13", plan).await?;
    let quiet = latency(&mut trial, lab.time(1.5, 8.0)).await;

    let requests: Vec<_> = (0..500)
        .map(|_| trial.fresh("/pay", Order::default()))
        .collect();
    let mut slow = Vec::new();
    for request in requests {
        let number = trial.history.invoke(&request);
        let bytes = bytes(&request, number, "");
        let mut connection = trial.client.line(0).open().await?;
        trial.history.fault("a client that sends a byte a second");
        // Half of them dawdle in the body, half in the head.
        let at_once = if number % 2 == 0 {
            bytes.len() - 60
        } else {
            40
        };
        connection
            .send(bytes.get(..at_once).unwrap_or_default())
            .await?;
        slow.push((number, connection, bytes, at_once));
    }
    let (done, mut over) = tokio::sync::watch::channel(false);
    let history = trial.history.clone();
    let dawdling = tokio::spawn(async move {
        while !*over.borrow_and_update() {
            let sent = slow.iter_mut().map(async |(_, connection, bytes, sent)| {
                let byte = bytes.get(*sent..=*sent).unwrap_or_default();
                *sent += 1;
                connection.send(byte).await
            });
            let failed = join_all(sent)
                .await
                .into_iter()
                .filter(Result::is_err)
                .count();
            if failed > 0 {
                return failed;
            }
            // It ends early when the trial is over.
            let _ = timeout(Duration::from_secs(1), over.changed()).await;
        }
        for (number, ..) in &slow {
            history.returned(*number, &Outcome::Lost("dawdled".to_owned()));
        }
        0
    });
    sleep(Duration::from_millis(300)).await;
    let service = trial.services.first().ok_or("no service")?;
    let [size, available, waiting] = service.pool_status().await?;
    trial.expect(
        size == available && waiting == 0,
        format!("slow clients hold {} connections", size - available),
    );
    let busy = latency(&mut trial, lab.time(2.5, 8.0)).await;
    done.send_replace(true);
    let failed = dawdling.await?;
    trial.expect(
        failed == 0,
        format!("{failed} slow clients were cut off early"),
    );
    // Below it, the machine's own jitter is what shows.
    let bound = (quiet * 2).max(Duration::from_millis(20));
    trial.note(format!("500 slow clients held {} database connections; others' p99 {quiet:.1?} before and {busy:.1?} meanwhile", size - available));
    trial.expect_in_time(
        busy <= bound,
        format!("others' p99 rose from {quiet:?} to {busy:?}"),
    );
    trial.end(Allowing::default()).await
}

/// Normal traffic's p99 over some time.
async fn latency(trial: &mut Trial, length: Duration) -> Duration {
    let until = Instant::now() + length;
    let rngs: Vec<_> = (0..4).map(|_| trial.rng.fork()).collect();
    let client = &trial.client;
    let customers = rngs.into_iter().map(async |mut rng| {
        let mut times = Vec::new();
        let mut line = client.line(0);
        while Instant::now() < until {
            let request = fresh(&mut rng, "/pay", Order::default());
            let began = Instant::now();
            line.attempt(&request).await;
            times.push(began.elapsed());
            sleep(Duration::from_millis(2)).await;
        }
        times
    });
    let mut times = join_all(customers).await.concat();
    percentile(&mut times, 0.99)
}

/// The largest body that an endpoint takes, unless its attribute says otherwise.
const LIMIT: usize = 2 << 20;

/// F15: bodies that end early, have no end, two lengths, too many bytes, or none.
pub(super) async fn bodies(lab: &Lab) -> Fallible<Verdict> {
    let mut trial = Trial::begin(lab, "F15", Plan::default()).await?;
    for _ in 0..lab.times(3, 30) {
        for case in cases()? {
            let request = trial.fresh("/pay", Order::default());
            let number = trial.history.invoke(&request);
            trial.history.fault(case.name);
            let head = format!(
                "POST /pay HTTP/1.1\r\nhost: lab\r\nx-caller: {}\r\nx-attempt: {number}\r\nidempotency-key: {}\r\n\
                 content-type: application/json\r\n{}\r\n",
                request.scope, request.key, case.lines
            );
            let mut connection = trial.client.line(0).open().await?;
            let outcome = exchange(&mut connection, &head, &case.body).await;
            trial.history.returned(number, &outcome);
            let status = outcome.status();
            let right = match case.right {
                0 => status.is_none_or(|status| (400..500).contains(&status)),
                right => status == Some(right),
            };
            trial.expect(right, format!("{}: {outcome:?}", case.name));
            let kept = format!(
                "SELECT count(*) FROM idem.records WHERE key = '{}'",
                request.key
            );
            let kept = trial.database.number(&kept).await?;
            trial.expect(kept == 0, format!("{}: {kept} records", case.name));
        }
        for (length, right) in [(LIMIT - 1, 201), (LIMIT, 201), (LIMIT + 1, 413)] {
            let mut request = Request::clone(&*trial.fresh("/pay", Order::default()));
            let room = length - request.body.len();
            request.body.push_str(&" ".repeat(room));
            trial.history.fault("a body at the limit");
            let outcome = trial.client.once(0, &Arc::new(request)).await;
            trial.expect(
                outcome.status() == Some(right),
                format!("{length} bytes: {outcome:?}"),
            );
        }
    }
    trial.end(Allowing::default()).await
}

struct Case {
    name: &'static str,
    /// Header lines, each with its end.
    lines: String,
    body: Vec<u8>,
    /// The status that is right; zero for any refusal, or a closed connection.
    right: u16,
}

fn cases() -> Fallible<Vec<Case>> {
    let body = br#"{"payer":1,"payee":2,"amount":0}"#;
    let case = |name, lines: &str, body: &[u8], right| Case {
        name,
        lines: lines.to_owned(),
        body: body.to_vec(),
        right,
    };
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    let zeros = vec![b' '; 1 << 20];
    for _ in 0..64 {
        bomb.write_all(&zeros)?;
    }
    let bomb = bomb.finish()?;
    let length = |body: &[u8]| format!("content-length: {}\r\n", body.len());
    let chunked = "transfer-encoding: chunked\r\n";
    let chunk = [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat();
    let gzip = format!("content-encoding: gzip\r\n{}", length(&bomb));
    Ok(vec![
        case("truncated body", "content-length: 100\r\n", body, 0),
        case("chunks without an end", chunked, &chunk, 0),
        case("chunk that ends early", chunked, b"ff\r\n{\"payer\":1", 0),
        case(
            "nonsense for a chunk's length",
            chunked,
            b"zz\r\n{}\r\n0\r\n\r\n",
            0,
        ),
        case(
            "both length headers",
            &format!("{chunked}{}", length(body)),
            body,
            400,
        ),
        case(
            "two lengths",
            &format!("{}content-length: 7\r\n", length(body)),
            body,
            400,
        ),
        case("gzip bomb", &gzip, &bomb, 413),
        case(
            "gzip that is none",
            &format!("content-encoding: gzip\r\n{}", length(body)),
            body,
            400,
        ),
        case(
            "unknown encoding",
            &format!("content-encoding: zip\r\n{}", length(body)),
            body,
            415,
        ),
        case("no body", "content-length: 0\r\n", b"", 400),
    ])
}

/// Sends, ends the sending side, and takes the answer, if there is one.
async fn exchange(connection: &mut Connection, head: &str, body: &[u8]) -> Outcome {
    let exchange = async {
        // A service that has refused already does not read the rest.
        let _ = connection.send([head.as_bytes(), body].concat()).await;
        let _ = connection.fin().await;
        connection.receive().await
    };
    match timeout(Duration::from_secs(5), exchange).await {
        Ok(Ok(answer)) => Outcome::Answer(answer.into()),
        Ok(Err(error)) => Outcome::Lost(error.to_string()),
        Err(_) => Outcome::Lost("no answer in time".to_owned()),
    }
}
