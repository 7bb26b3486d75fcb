//! Reads a request's body within a limit and a deadline, and decodes it for the fingerprint.

use std::{io::Read, time::Duration};

use actix_web::{
    HttpRequest,
    error::PayloadError,
    http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap},
    web,
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::time::timeout;

use super::problem::{Problem, ProblemKind};

/// Reads the whole body. actix has no deadline of its own for one.
pub(super) async fn read(
    request: &HttpRequest,
    payload: web::Payload,
    limit: usize,
    deadline: Duration,
) -> Result<Bytes, Problem> {
    if announced(request).is_some_and(|length| length > limit as u64) {
        return Err(Problem::new(ProblemKind::BodyTooLarge));
    }
    timeout(deadline, collect(payload, limit))
        .await
        .unwrap_or_else(|_| Err(Problem::new(ProblemKind::BodyTimeout)))
}

async fn collect(mut payload: web::Payload, limit: usize) -> Result<Bytes, Problem> {
    let mut body = BytesMut::new();
    while let Some(chunk) = payload.next().await {
        // The first error is final: polled again, the payload would say that it is complete.
        let chunk = chunk.map_err(|error| {
            Problem::new(match error {
                PayloadError::Overflow => ProblemKind::BodyTooLarge,
                _ => ProblemKind::BodyIncomplete,
            })
        })?;
        if body.len() + chunk.len() > limit {
            return Err(Problem::new(ProblemKind::BodyTooLarge));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// Whether something took the body out of the request before the handler.
pub(super) fn was_taken(request: &HttpRequest, body: &Bytes) -> bool {
    body.is_empty() && announced(request).is_some_and(|length| length > 0)
}

fn announced(request: &HttpRequest) -> Option<u64> {
    request
        .headers()
        .get(CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

/// Decodes the body as its `Content-Encoding` says: a repeat may be compressed in another way.
pub(super) fn decode(headers: &HeaderMap, body: &Bytes, limit: usize) -> Result<Bytes, Problem> {
    let mut codings = headers.get_all(CONTENT_ENCODING);
    let coding = match (codings.next(), codings.next()) {
        (None, _) => return Ok(body.clone()),
        (Some(coding), None) => coding
            .to_str()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase(),
        _ => return Err(Problem::new(ProblemKind::EncodingUnsupported)),
    };
    if coding == "identity" {
        return Ok(body.clone());
    }
    decoder(&coding, body).map_or_else(
        || Err(Problem::new(ProblemKind::EncodingUnsupported)),
        |decoder| read_within(decoder, limit),
    )
}

/// Reads a decoder without ever holding more than the limit.
fn read_within(decoder: Box<dyn Read + '_>, limit: usize) -> Result<Bytes, Problem> {
    let mut decoded = Vec::new();
    decoder
        .take(limit as u64 + 1)
        .read_to_end(&mut decoded)
        .map_err(|_| Problem::new(ProblemKind::BodyIncomplete))?;
    if decoded.len() > limit {
        return Err(Problem::new(ProblemKind::BodyTooLarge));
    }
    Ok(decoded.into())
}

#[cfg(feature = "compress")]
fn decoder<'a>(coding: &str, body: &'a [u8]) -> Option<Box<dyn Read + 'a>> {
    match coding {
        "gzip" | "x-gzip" => Some(Box::new(flate2::read::GzDecoder::new(body))),
        "deflate" => Some(Box::new(flate2::read::ZlibDecoder::new(body))),
        "br" => Some(Box::new(brotli::Decompressor::new(body, 4096))),
        "zstd" => Some(Box::new(
            zstd::stream::read::Decoder::with_buffer(body).ok()?,
        )),
        _ => None,
    }
}

#[cfg(not(feature = "compress"))]
fn decoder<'a>(_: &str, _: &'a [u8]) -> Option<Box<dyn Read + 'a>> {
    None
}

#[cfg(all(test, feature = "compress"))]
mod tests {
    use std::io::Write;

    use actix_web::http::header::HeaderValue;
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    #[allow(clippy::unwrap_used, reason = "writing to a vector does not fail")]
    fn gzip(body: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap().into()
    }

    fn decoded(coding: &'static str, body: &Bytes, limit: usize) -> Result<Bytes, ProblemKind> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
        decode(&headers, body, limit).map_err(|problem| problem.kind())
    }

    #[test]
    fn every_coding_that_actix_knows_is_decoded() {
        let text = Bytes::from_static(b"hello hello hello");
        assert_eq!(decoded("gzip", &gzip(&text), 100), Ok(text.clone()));
        assert_eq!(decoded("GZip", &gzip(&text), 100), Ok(text.clone()));
        assert_eq!(decoded("identity", &text, 100), Ok(text.clone()));
        let zstd = zstd::encode_all(&*text, 0).unwrap().into();
        assert_eq!(decoded("zstd", &zstd, 100), Ok(text.clone()));
        let mut brotli = Vec::new();
        brotli::BrotliCompress(
            &mut &*text,
            &mut brotli,
            &brotli::enc::BrotliEncoderParams::default(),
        )
        .unwrap();
        assert_eq!(decoded("br", &brotli.into(), 100), Ok(text));
    }

    #[test]
    fn an_unknown_or_double_coding_is_refused() {
        assert_eq!(
            decoded("lzma", &Bytes::new(), 9),
            Err(ProblemKind::EncodingUnsupported)
        );
        assert_eq!(
            decoded("gzip, br", &Bytes::new(), 9),
            Err(ProblemKind::EncodingUnsupported)
        );
    }

    #[test]
    fn a_bomb_is_refused_and_a_broken_stream_too() {
        let bomb = gzip(&vec![0; 1 << 20]);
        assert!(bomb.len() < 2000);
        assert_eq!(
            decoded("gzip", &bomb, 1 << 19),
            Err(ProblemKind::BodyTooLarge)
        );
        assert_eq!(
            decoded("gzip", &bomb, 1 << 20).map(|body| body.len()),
            Ok(1 << 20)
        );
        assert_eq!(
            decoded("gzip", &bomb.slice(..99), 1 << 20),
            Err(ProblemKind::BodyIncomplete)
        );
        assert_eq!(
            decoded("gzip", &Bytes::from_static(b"x"), 9),
            Err(ProblemKind::BodyIncomplete)
        );
    }
}
