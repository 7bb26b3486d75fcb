//! Each rule broken once: what is said, and that it is said alone.

/// What the attribute says about a handler, one line a fault, without the help below it.
fn faults(arguments: &str, item: &str) -> Vec<String> {
    let tokens = crate::guard(arguments.parse().unwrap(), &item.parse().unwrap());
    let file: syn::File = syn::parse2(tokens).unwrap();
    let message = |item: &syn::Item| match item {
        syn::Item::Macro(error) => error
            .mac
            .parse_body::<syn::LitStr>()
            .ok()
            .map(|text| text.value()),
        _ => None,
    };
    let messages = file.items.iter().filter_map(message);
    messages
        .map(|message| message.lines().next().unwrap().to_owned())
        .collect()
}

const HANDLER: &str = "async fn pay(account: Account, form: Form, tx: &Tx) -> Answer {}";

#[track_caller]
fn options(arguments: &str, expected: &[&str]) {
    assert_eq!(faults(arguments, HANDLER), expected, "{arguments}");
}

#[track_caller]
fn signature(item: &str, expected: &[&str]) {
    assert_eq!(faults("scope = account", item), expected, "{item}");
}

#[test]
fn scope_is_mandatory() {
    let missing =
        "`#[idempotent]` has no scope: without one, callers could replay each other's answers";
    options("", &[missing]);
    options("ttl = \"1h\"", &[missing]);
}

#[test]
fn scope_and_key_name_parameters() {
    for good in [
        "global",
        "account",
        "account.id",
        "*account",
        "&account.id",
        "(account.tenant, account.user)",
        "tenant_of(&account)",
        "rules::tenant_of(&account, LIMIT)",
        "account.tenant().as_str()",
        "account.ids[0]",
        "Owner { account, kind: KIND }",
        "account.id + OFFSET",
        "account.id as u64",
        "format!(\"{account}\")",
        "match account.kind { Kind::A(id) => id, other => other.id() }",
        "if account.is_internal() { internal } else { external }",
        "{ let tenant = account.tenant(); tenant.id }",
        "account.ids.iter().map(|id| id.number).sum::<u64>()",
        "<Account as Owner>::id(&account)",
    ] {
        options(&format!("scope = {good}"), &[]);
    }
    options(
        "scope = acount",
        &["`acount` is not a parameter of this handler"],
    );
    options(
        "scope = (account, tenant.id(region))",
        &[
            "`tenant` is not a parameter of this handler",
            "`region` is not a parameter of this handler",
        ],
    );
    options(
        "scope = account, key = body.id",
        &["`body` is not a parameter of this handler"],
    );
    options(
        "scope = acount, scope = tx",
        &[
            "`acount` is not a parameter of this handler",
            "option `scope` is given twice",
            "note: first given here",
        ],
    );
}

#[test]
fn scope_and_key_are_no_constants() {
    for constant in [
        "\"payments\"",
        "None",
        "7",
        "()",
        "TENANT",
        "tenant()",
        "Kind::Payments",
        "(1, \"a\")",
    ] {
        options(
            &format!("scope = {constant}"),
            &["this scope mentions no parameter: every caller would share it"],
        );
        options(
            &format!("scope = account, key = {constant}"),
            &["this key mentions no parameter: every request would carry the same key"],
        );
    }
}

#[test]
fn scope_and_key_cannot_read_the_transaction() {
    options(
        "scope = tx",
        &["`tx` is the transaction: it does not exist yet when the scope is read"],
    );
    options(
        "scope = account, key = (form.id, tx.id())",
        &["`tx` is the transaction: it does not exist yet when the key is read"],
    );
}

#[test]
fn keyword_wins_over_a_parameter_of_that_name() {
    let item = "async fn pay(global: Account, raw: Form, tx: &Tx) -> Answer {}";
    assert_eq!(faults("scope = global, fingerprint = raw", item), [""; 0]);
    let expansion = crate::guard("scope = global".parse().unwrap(), &item.parse().unwrap());
    assert!(expansion.to_string().contains("global_scope"));
}

#[test]
fn bindings_inside_patterns_are_parameters() {
    let item =
        "async fn pay(Pair { left, right: Some(mut inner @ Inner(ref deep)) }: Pair, tx: &Tx) {}";
    for name in ["left", "inner", "deep"] {
        assert_eq!(faults(&format!("scope = {name}"), item), [""; 0], "{name}");
    }
    assert_eq!(
        faults("scope = right", item),
        ["`right` is not a parameter of this handler"]
    );
}

#[test]
fn durations_have_bounds() {
    options(
        "scope = account, ttl = \"3660d\", wait = \"5m\", timeout = \"24h\"",
        &[],
    );
    options(
        "scope = account, ttl = \"3661d\"",
        &["`ttl` is longer than ten years"],
    );
    options(
        "scope = account, wait = \"301s\"",
        &["`wait` is longer than five minutes: clients give up before that"],
    );
    options(
        "scope = account, ttl = \"7d\", timeout = \"25h\"",
        &["`timeout` is longer than a day: the handler's transaction is open all that time"],
    );
    options(
        "scope = account, ttl = \"1y\"",
        &[
            "`ttl` is counted in a calendar unit, which has no fixed length: write days, like `\"365d\"`",
        ],
    );
    options(
        "scope = account, ttl = 24h",
        &["`ttl` takes a string in quotes"],
    );
}

#[test]
fn key_outlives_the_handlers_deadline() {
    let fault = "`ttl` must be longer than `timeout`: a key could expire while its handler runs";
    options("scope = account, ttl = \"30001ms\"", &[]);
    options("scope = account, ttl = \"11s\", timeout = \"10s\"", &[]);
    options("scope = account, ttl = \"30s\"", &[fault]);
    options(
        "scope = account, ttl = \"10s\", timeout = \"10s\"",
        &[fault],
    );
    options("scope = account, timeout = \"24h\"", &[fault]);
    // What cannot be read is no reason for a second fault.
    options(
        "scope = account, ttl = \"1x\", timeout = \"24h\"",
        &["`ttl` has the unknown unit `x`: the units are `ms`, `s`, `m`, `h`, `d`, `w`"],
    );
}

#[test]
fn sizes_are_strings_with_a_unit() {
    options(
        "scope = account, max_body = \"500B\", max_response = \"64KiB\"",
        &[],
    );
    options(
        "scope = account, max_body = \"1MB\", max_response = 1024",
        &[
            "`max_body` has the unknown unit `MB`: the units are `B`, `KiB`, `MiB`",
            "`max_response` takes a string in quotes",
        ],
    );
}

#[test]
fn header_is_a_token_and_is_read() {
    options(
        "scope = account, header = \"X-Request-Id\", key = optional",
        &[],
    );
    for bad in ["", "Request Id", "Request:Id", "Schlüssel", "a\\u{7f}"] {
        options(
            &format!("scope = account, header = \"{bad}\""),
            &["`header` is no valid header name"],
        );
    }
    options(
        "scope = account, header = \"X-Request-Id\", key = form.id",
        &[
            "`header` names a header that is not read: the key comes from the request",
            "note: the key is taken from here",
        ],
    );
}

#[test]
fn operation_is_short_visible_ascii() {
    let longest = "x".repeat(200);
    options(&format!("scope = account, operation = \"{longest}\""), &[]);
    for bad in [
        "",
        "create payment",
        "zahlung.ö",
        &format!("{longest}x"),
        "tab\\t",
    ] {
        options(
            &format!("scope = account, operation = \"{bad}\""),
            &["`operation` is 1 to 200 visible ASCII characters, without spaces"],
        );
    }
}

#[test]
fn functions_are_named_by_their_path() {
    options(
        "scope = account, authorize = rules::may_pay::<Account>, fingerprint = by_amount",
        &[],
    );
    options(
        "scope = account, authorize = may_pay(account)",
        &["`authorize` takes a path"],
    );
    options(
        "scope = account, fingerprint = \"raw\"",
        &["`fingerprint` takes a path"],
    );
    options(
        "scope = account, crate = \"idem\"",
        &["`crate` takes a path"],
    );
}

#[test]
fn isolation_is_a_level_of_postgresql() {
    for level in ["read committed", "repeatable read", "serializable"] {
        options(&format!("scope = account, isolation = \"{level}\""), &[]);
    }
    options(
        "scope = account, isolation = \"SERIALIZABLE\"",
        &["unknown isolation level"],
    );
}

#[test]
fn only_refusals_can_be_treated_in_another_way() {
    options(
        "scope = account, commit_on = [400, 499], release_on = [404]",
        &[],
    );
    let fault = "only a refusal, a status from 400 to 499, can be treated in another way";
    for bad in ["200", "399", "500", "70000", "-1", "\"404\"", "NOT_FOUND"] {
        options(&format!("scope = account, commit_on = [{bad}]"), &[fault]);
        options(&format!("scope = account, release_on = [{bad}]"), &[fault]);
    }
    for free in [408, 425, 429] {
        let fault = format!("status {free} always frees the key");
        options(&format!("scope = account, commit_on = [{free}]"), &[&fault]);
        options(
            &format!("scope = account, release_on = [{free}]"),
            &[&fault],
        );
    }
}

#[test]
fn each_status_is_decided_once() {
    options(
        "scope = account, commit_on = [402, 409, 402]",
        &["status 402 is listed twice", "note: first listed here"],
    );
    options(
        "scope = account, commit_on = [402], release_on = [404, 402]",
        &[
            "status 402 is in `commit_on` and in `release_on`",
            "note: also listed here",
        ],
    );
    options(
        "scope = account, commit_on = []",
        &["`commit_on` lists no status"],
    );
    options(
        "scope = account, release_on = 404",
        &["`release_on` takes a list of statuses"],
    );
}

#[test]
fn handler_is_a_plain_async_function() {
    signature(
        "fn pay(account: Account, tx: &Tx) {}",
        &["a handler is async"],
    );
    signature(
        "const async unsafe extern \"C\" fn pay(account: Account, tx: &Tx) {}",
        &[
            "a handler cannot be `const`",
            "a handler cannot be `unsafe`: actix calls it",
            "a handler cannot be `extern`",
        ],
    );
    signature(
        "async fn pay(account: Account, tx: &Tx, ...) {}",
        &["a handler cannot be variadic"],
    );
    let method = "async fn pay(&self, account: Account, tx: &Tx) {}";
    let tokens = crate::guard("scope = account".parse().unwrap(), &method.parse().unwrap());
    assert!(tokens.to_string().contains("a handler has no `self`"));
    for item in [
        "struct Payment;",
        "fn pay();",
        "mod payments {}",
        "const PAY: u8 = 1;",
    ] {
        assert_eq!(faults("scope = global", item).len(), 1, "{item}");
    }
}

#[test]
fn exactly_one_parameter_is_a_reference() {
    let missing =
        "handler `pay` has no transaction parameter: its writes would commit on their own";
    signature("async fn pay(account: Account) {}", &[missing]);
    let by_value = "a handler is lent its transaction, which the runtime ends";
    for tx in [
        "Tx",
        "postgres::Tx",
        "PgConnection",
        "Transaction<'static, Postgres>",
    ] {
        let item = format!("async fn pay(account: Account, tx: {tx}) {{}}");
        signature(&item, &[by_value]);
    }
    signature(
        "async fn pay(account: Account, tx: &Tx, name: &str, other: &Tx) {}",
        &[
            "only one parameter is a reference: the transaction",
            "note: the transaction is this one",
            "only one parameter is a reference: the transaction",
            "note: the transaction is this one",
        ],
    );
    for tx in [
        "&Tx",
        "&'_ Tx",
        "&mut PgConnection",
        "&mut Transaction<'_, Postgres>",
        "(&Tx)",
    ] {
        signature(
            &format!("async fn pay(account: Account, tx: {tx}) {{}}"),
            &[],
        );
    }
}

#[test]
fn lifetimes_are_left_out() {
    let elide = "the transaction lives as long as the runtime says";
    signature(
        "async fn pay<'a>(account: Account, tx: &'a Tx) {}",
        &[
            "a handler has no lifetime parameters: extractors own what they hold",
            elide,
        ],
    );
    signature(
        "async fn pay(account: Account, tx: &'static Tx) {}",
        &[elide],
    );
}

#[test]
fn parameters_have_named_types_and_are_always_there() {
    for parameter in [
        "form: impl FromRequest",
        "form: web::Json<impl Form>",
        "form: Vec<(u8, impl Form)>",
    ] {
        signature(
            &format!("async fn pay(account: Account, {parameter}, tx: &Tx) {{}}"),
            &["a parameter's type needs a name here"],
        );
    }
    signature(
        "async fn pay(account: Account, #[cfg(unix)] form: Form, tx: &Tx) {}",
        &["a handler's parameters cannot be conditional"],
    );
    signature(
        "async fn pay(account: Account, #[allow(unused)] form: Form, tx: &Tx) {}",
        &[],
    );
    let fifteen = "_: Form, ".repeat(15);
    signature(
        &format!("async fn pay(account: Account, {fifteen}tx: &Tx) {{}}"),
        &[],
    );
    signature(
        &format!("async fn pay(account: Account, {fifteen}_: Form, tx: &Tx) {{}}"),
        &["actix extracts at most 16 parameters"],
    );
}

#[test]
fn attributes_that_look_at_the_handler_stand_above() {
    for inert in [
        "doc = \"Pays.\"",
        "cfg(unix)",
        "cfg_attr(unix, inline)",
        "allow(unused)",
        "warn(unused)",
        "deny(unused)",
        "forbid(unused)",
        "expect(unused)",
        "deprecated",
        "must_use",
        "inline",
        "cold",
        "track_caller",
        "rustfmt::skip",
        "clippy::has_significant_drop",
    ] {
        signature(
            &format!("#[{inert}] async fn pay(account: Account, tx: &Tx) {{}}"),
            &[],
        );
    }
    for route in [
        "get", "post", "put", "patch", "delete", "head", "options", "trace", "connect", "query",
        "route", "routes",
    ] {
        let expected = format!(
            "`#[{route}]` must stand above `#[idempotent]`: it needs to see the handler as you wrote it"
        );
        signature(
            &format!("#[{route}(\"/\")] async fn pay(account: Account, tx: &Tx) {{}}"),
            &[&expected],
        );
    }
    for other in [
        "utoipa::path",
        "tracing::instrument",
        "actix_web::post",
        "test",
    ] {
        let expected = format!(
            "`#[{other}]` must stand above `#[idempotent]`: it needs to see the handler as you wrote it"
        );
        signature(
            &format!("#[{other}] async fn pay(account: Account, tx: &Tx) {{}}"),
            &[&expected],
        );
        signature(
            &format!(
                "#[cfg_attr(unix, cold, {other})] async fn pay(account: Account, tx: &Tx) {{}}"
            ),
            &[&expected],
        );
    }
    signature(
        "#[idem_runtime::idempotent(scope = account)] async fn pay(account: Account, tx: &Tx) {}",
        &["`#[idempotent]` stands above this handler already"],
    );
}

#[test]
fn faults_of_the_attribute_and_of_the_function_come_together() {
    let item = "#[post(\"/\")] fn pay(account: Account) {}";
    assert_eq!(
        faults("ttl = \"0s\", scop = account, key = acount", item).len(),
        7
    );
}
