//! The options' rules: one small function for each, and one for each pair that can contradict.

use proc_macro2::{Ident, Span};
use syn::{Error, Expr, ExprPath, Lit, LitStr, Path};

use super::statuses;
use crate::duration;
use crate::errors::{Errors, with_note};
use crate::parse::{Given, Options};

/// The values of all options but `scope`. `None` leaves the default to the runtime.
pub(crate) struct Settings<'a> {
    pub(crate) krate: Path,
    pub(crate) key: KeySource<'a>,
    pub(crate) authorize: Option<&'a ExprPath>,
    pub(crate) fingerprint: Option<Fingerprint<'a>>,
    /// Milliseconds, as are the other durations.
    pub(crate) ttl: Option<u64>,
    pub(crate) wait: Option<u64>,
    pub(crate) timeout: Option<u64>,
    /// Bytes.
    pub(crate) max_body: Option<u64>,
    pub(crate) max_response: Option<u64>,
    pub(crate) operation: Option<&'a LitStr>,
    pub(crate) header: Option<&'a LitStr>,
    pub(crate) commit_on: Vec<u16>,
    pub(crate) release_on: Vec<u16>,
    /// The variant of `Isolation` to name.
    pub(crate) isolation: Option<Ident>,
}

/// Where the key comes from.
pub(crate) enum KeySource<'a> {
    Header { optional: bool },
    Request(&'a Expr),
}

/// How a request is compared with the one that used its key before.
pub(crate) enum Fingerprint<'a> {
    Raw,
    Custom(&'a ExprPath),
}

const MINUTE: u64 = 60_000;
const DAY: u64 = 24 * 60 * MINUTE;

/// What the runtime uses where the attribute says nothing, in milliseconds.
const DEFAULT_TTL: u64 = DAY;
const DEFAULT_TIMEOUT: u64 = 30_000;

/// The largest values, in milliseconds and in words.
const MAX_TTL: (u64, &str) = (3_660 * DAY, "ten years");
const MAX_TIMEOUT: (u64, &str) = (
    DAY,
    "a day: the handler's transaction is open all that time",
);
const MAX_WAIT: (u64, &str) = (5 * MINUTE, "five minutes: clients give up before that");

impl<'a> Settings<'a> {
    /// Applies every rule that needs these options alone.
    pub(super) fn check(options: &'a Options, errors: &mut Errors) -> Self {
        let key = options
            .key
            .as_ref()
            .map_or(KeySource::Header { optional: false }, key);
        let ttl = errors.apply(options.ttl.as_ref(), |given| {
            duration(given, "24h", MAX_TTL)
        });
        let timeout = errors.apply(options.timeout.as_ref(), |given| {
            duration(given, "10s", MAX_TIMEOUT)
        });
        let (commit_on, release_on) = statuses::check(options, errors);
        errors.apply(options.krate.as_ref(), crate_path);
        lifetime_exceeds_deadline(options, ttl, timeout, errors);
        header_is_read(options, &key, errors);
        Self {
            krate: krate(options),
            authorize: errors.apply(options.authorize.as_ref(), |given| path(given, "may_pay")),
            fingerprint: errors.apply(options.fingerprint.as_ref(), fingerprint),
            wait: errors.apply(options.wait.as_ref(), |given| {
                duration(given, "5s", MAX_WAIT)
            }),
            max_body: errors.apply(options.max_body.as_ref(), |given| size(given, "1MiB")),
            max_response: errors.apply(options.max_response.as_ref(), |given| size(given, "64KiB")),
            operation: errors.apply(options.operation.as_ref(), operation),
            header: errors.apply(options.header.as_ref(), header),
            isolation: errors.apply(options.isolation.as_ref(), isolation),
            commit_on,
            release_on,
            key,
            ttl,
            timeout,
        }
    }
}

/// The crate to name in generated code; the default also where the option is faulty.
pub(crate) fn krate(options: &Options) -> Path {
    let given = options.krate.as_ref();
    given
        .and_then(|given| crate_path(given).ok())
        .unwrap_or_else(|| syn::parse_quote!(::idem_runtime))
}

/// Who owns a key.
#[derive(Clone, Copy)]
pub(crate) enum Scope<'a> {
    Global,
    Of(&'a Expr),
}

impl<'a> Scope<'a> {
    pub(super) fn check(given: Option<&'a Given>) -> syn::Result<Self> {
        match given {
            Some(given) if is_word(&given.value, "global") => Ok(Self::Global),
            Some(given) => Ok(Self::Of(&given.value)),
            None => Err(Error::new(
                Span::call_site(),
                "`#[idempotent]` has no scope: without one, callers could replay each other's answers\n\
                 help: name the parameter that tells them apart, like `scope = account`, or write \
                 `scope = global` if all callers share their keys",
            )),
        }
    }
}

fn key(given: &Given) -> KeySource<'_> {
    if is_word(&given.value, "required") {
        KeySource::Header { optional: false }
    } else if is_word(&given.value, "optional") {
        KeySource::Header { optional: true }
    } else {
        KeySource::Request(&given.value)
    }
}

fn fingerprint(given: &Given) -> syn::Result<Fingerprint<'_>> {
    if is_word(&given.value, "raw") {
        return Ok(Fingerprint::Raw);
    }
    path(given, "raw").map(Fingerprint::Custom)
}

fn crate_path(given: &Given) -> syn::Result<Path> {
    path(given, "my_framework::idem").map(|path| path.path.clone())
}

fn path<'a>(given: &'a Given, example: &str) -> syn::Result<&'a ExprPath> {
    match &given.value {
        Expr::Path(path) => Ok(path),
        value => Err(Error::new_spanned(
            value,
            format!(
                "`{0}` takes a path\nhelp: write it without arguments, like `{0} = {example}`",
                given.name
            ),
        )),
    }
}

/// Accepts a string in quotes.
fn text<'a>(given: &'a Given, example: &str) -> syn::Result<&'a LitStr> {
    if let Expr::Lit(value) = &given.value
        && let Lit::Str(text) = &value.lit
    {
        return Ok(text);
    }
    Err(Error::new_spanned(
        &given.value,
        format!(
            "`{0}` takes a string in quotes\nhelp: write `{0} = \"{example}\"`",
            given.name
        ),
    ))
}

fn duration(given: &Given, example: &str, (largest, in_words): (u64, &str)) -> syn::Result<u64> {
    let text = text(given, example)?;
    match duration::milliseconds(&text.value()) {
        Ok(milliseconds) if milliseconds <= largest => Ok(milliseconds),
        Ok(_) => Err(format!("is longer than {in_words}")),
        Err(fault) => Err(fault),
    }
    .map_err(|fault| Error::new_spanned(text, format!("`{}` {fault}", given.name)))
}

fn size(given: &Given, example: &str) -> syn::Result<u64> {
    let text = text(given, example)?;
    let bytes = duration::bytes(&text.value())
        .map_err(|fault| Error::new_spanned(text, format!("`{}` {fault}", given.name)))?;
    if bytes <= LARGEST {
        return Ok(bytes);
    }
    let fault = format!(
        "`{}` is larger than 256MiB: bodies are held in memory, and answers in a column",
        given.name
    );
    Err(Error::new_spanned(text, fault))
}

/// The largest body, in bytes.
const LARGEST: u64 = 256 << 20;

fn operation(given: &Given) -> syn::Result<&LitStr> {
    let text = text(given, "payments.create")?;
    let name = text.value();
    if (1..=200).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text);
    }
    Err(Error::new_spanned(
        text,
        "`operation` is 1 to 200 visible ASCII characters, without spaces",
    ))
}

fn header(given: &Given) -> syn::Result<&LitStr> {
    let text = text(given, "X-Request-Id")?;
    let name = text.value();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_token) {
        return Ok(text);
    }
    Err(Error::new_spanned(
        text,
        "`header` is no valid header name\nhelp: use letters, digits and `-`, like `X-Request-Id`",
    ))
}

fn isolation(given: &Given) -> syn::Result<Ident> {
    let text = text(given, "serializable")?;
    let variant = match text.value().as_str() {
        "read committed" => "ReadCommitted",
        "repeatable read" => "RepeatableRead",
        "serializable" => "Serializable",
        _ => {
            return Err(Error::new_spanned(
                text,
                "unknown isolation level\n\
                 help: the levels are `read committed`, `repeatable read`, `serializable`",
            ));
        }
    };
    Ok(Ident::new(variant, Span::call_site()))
}

fn lifetime_exceeds_deadline(
    options: &Options,
    ttl: Option<u64>,
    timeout: Option<u64>,
    errors: &mut Errors,
) {
    // A value that was written but could not be read has its own error.
    let readable =
        options.ttl.is_some() == ttl.is_some() && options.timeout.is_some() == timeout.is_some();
    let (ttl, timeout) = (
        ttl.unwrap_or(DEFAULT_TTL),
        timeout.unwrap_or(DEFAULT_TIMEOUT),
    );
    if let Some(written) = options.ttl.as_ref().or(options.timeout.as_ref())
        && readable
        && ttl <= timeout
    {
        let (ttl, timeout) = (in_words(ttl), in_words(timeout));
        errors.at(
            &written.value,
            format!(
                "`ttl` must be longer than `timeout`: a key could expire while its handler runs\n\
                 help: `ttl` is {ttl}, `timeout` is {timeout}",
            ),
        );
    }
}

fn header_is_read(options: &Options, key: &KeySource<'_>, errors: &mut Errors) {
    if let (Some(header), Some(given), KeySource::Request(_)) = (&options.header, &options.key, key)
    {
        errors.add(with_note(
            &header.name,
            "`header` names a header that is not read: the key comes from the request\n\
             help: remove one of the two options",
            &given.value,
            "the key is taken from here",
        ));
    }
}

fn in_words(milliseconds: u64) -> String {
    match (milliseconds / 1_000, milliseconds % 1_000) {
        (seconds, 0) => format!("{seconds}s"),
        _ => format!("{milliseconds}ms"),
    }
}

fn is_word(value: &Expr, word: &str) -> bool {
    matches!(value, Expr::Path(path) if path.path.is_ident(word))
}
