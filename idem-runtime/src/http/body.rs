//! Reads a request's body within a limit and a deadline, and decodes it for the fingerprint.

use std::{io::Read, time::Duration};

use actix_web::{
    HttpRequest,
    dev::Payload,
    error::PayloadError,
    http::{
        Version,
        header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING},
    },
    web,
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tokio::time::timeout;

use super::problem::{Problem, ProblemKind};

/// Reads the whole body; actix has no deadline of its own for one. `None` says that something took
/// the body out of the request before the handler.
pub(super) async fn read(
    request: &HttpRequest,
    payload: web::Payload,
    limit: usize,
    deadline: Duration,
) -> Result<Option<Bytes>, Problem> {
    let announced = announced(request);
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(Problem::new(ProblemKind::BodyTooLarge));
    }
    let payload = payload.into_inner();
    if matches!(payload, Payload::None) && may_have_body(request, announced) {
        return Ok(None);
    }
    let body = timeout(deadline, collect(payload, limit))
        .await
        .unwrap_or_else(|_| Err(Problem::new(ProblemKind::BodyTimeout)))?;
    // Read to its end, but left in its place.
    let drained = body.is_empty() && announced.is_some_and(|length| length > 0);
    Ok((!drained).then_some(body))
}

async fn collect(mut payload: Payload, limit: usize) -> Result<Bytes, Problem> {
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

/// Whether the request came with a body for all that its head says. HTTP/2 announces none.
fn may_have_body(request: &HttpRequest, announced: Option<u64>) -> bool {
    announced.map_or_else(
        || {
            request.headers().contains_key(TRANSFER_ENCODING)
                || request.version() == Version::HTTP_2
        },
        |length| length > 0,
    )
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
    let mut rest = &**body;
    let decoder = decoder(&coding, &mut rest);
    let decoder = decoder.ok_or_else(|| Problem::new(ProblemKind::EncodingUnsupported))?;
    let decoded = read_within(decoder, limit)?;
    if !rest.is_empty() {
        return Err(Problem::new(ProblemKind::BodyIncomplete));
    }
    Ok(decoded)
}

/// Reads a decoder without ever holding more than the limit.
///
/// What stands behind the encoded body's end is nothing to one reader and a part of it to another,
/// so it is refused. Brotli's decoder says so when it is read beyond the end, the others leave it.
fn read_within(decoder: Box<dyn Read + '_>, limit: usize) -> Result<Bytes, Problem> {
    let mut decoder = decoder.take(limit as u64 + 1);
    let mut decoded = Vec::new();
    let read = decoder.read_to_end(&mut decoded);
    if decoded.len() > limit {
        return Err(Problem::new(ProblemKind::BodyTooLarge));
    }
    read.and_then(|_| decoder.read(&mut [0]))
        .map_err(|_| Problem::new(ProblemKind::BodyIncomplete))?;
    Ok(decoded.into())
}

/// Makes a decoder that leaves in `body` what it does not use.
#[cfg(feature = "compress")]
fn decoder<'a>(coding: &str, body: &'a mut &[u8]) -> Option<Box<dyn Read + 'a>> {
    match coding {
        "gzip" | "x-gzip" => Some(Box::new(flate2::bufread::GzDecoder::new(body))),
        "deflate" => Some(Box::new(flate2::bufread::ZlibDecoder::new(body))),
        "br" => Some(Box::new(brotli::Decompressor::new(body, 4096))),
        "zstd" => Some(Box::new(
            zstd::stream::read::Decoder::with_buffer(body).ok()?,
        )),
        _ => None,
    }
}

#[cfg(not(feature = "compress"))]
fn decoder<'a>(_: &str, _: &'a mut &[u8]) -> Option<Box<dyn Read + 'a>> {
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
    fn what_stands_behind_the_encoded_body_makes_it_corrupt() {
        let text = b"hello hello hello";
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(text).unwrap();
        let mut brotli = Vec::new();
        let parameters = brotli::enc::BrotliEncoderParams::default();
        brotli::BrotliCompress(&mut &text[..], &mut brotli, &parameters).unwrap();
        for (coding, whole) in [
            ("gzip", gzip(text).to_vec()),
            ("deflate", zlib.finish().unwrap()),
            ("br", brotli),
            ("zstd", zstd::encode_all(&text[..], 0).unwrap()),
        ] {
            assert!(decoded(coding, &whole.clone().into(), 100).is_ok());
            for rest in [&b"x"[..], &[b'x'; 10_000], &gzip(text)] {
                let longer = [&whole, rest].concat().into();
                let refused = Err(ProblemKind::BodyIncomplete);
                assert_eq!(decoded(coding, &longer, 100), refused, "{coding}");
            }
        }
    }

    #[test]
    fn a_body_is_missed_where_the_request_may_have_had_one() {
        use actix_web::test::TestRequest;

        for (request, length, expected) in [
            (TestRequest::post(), None, false),
            (TestRequest::post(), Some(0), false),
            (TestRequest::post(), Some(3), true),
            (
                TestRequest::post().insert_header((TRANSFER_ENCODING, "chunked")),
                None,
                true,
            ),
            (TestRequest::post().version(Version::HTTP_2), None, true),
            (TestRequest::post().version(Version::HTTP_2), Some(0), false),
        ] {
            assert_eq!(may_have_body(&request.to_http_request(), length), expected);
        }
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
