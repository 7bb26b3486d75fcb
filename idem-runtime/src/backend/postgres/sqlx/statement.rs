//! The protocol's statements as sqlx sends them.

use sqlx::{
    Decode, Encode, Postgres, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgArguments, PgTypeInfo, PgValueRef, types::Oid},
    query::Query,
};

use super::super::{StatementMode, schema::in_schema};

/// Holds the protocol's statements for one schema.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) look: Sql,
    pub(super) claim: Sql,
    pub(super) open: Sql,
    pub(super) set: Sql,
    pub(super) clear: Sql,
    pub(super) mark: Sql,
    pub(super) unmark: Sql,
    pub(super) keep: Sql,
    pub(super) intact: Sql,
    pub(super) held: Sql,
    pub(super) status: Sql,
    pub(super) sweep: Sql,
    pub(super) verify: Sql,
}

/// Holds one statement as it is sent.
#[derive(Debug)]
pub(super) struct Sql {
    text: String,
    mode: StatementMode,
}

impl Statements {
    pub(super) fn new(schema: &str, mode: StatementMode) -> Self {
        let sql = |text| Sql {
            text: in_schema(text, schema),
            mode,
        };
        Self {
            look: sql(include_str!("../sql/look.sql")),
            claim: sql(include_str!("../sql/claim.sql")),
            open: sql(include_str!("../sql/open.sql")),
            set: sql(include_str!("../sql/settings.sql")),
            clear: sql(include_str!("../sql/clear.sql")),
            mark: sql(include_str!("../sql/mark.sql")),
            unmark: sql(include_str!("../sql/unmark.sql")),
            keep: sql(include_str!("../sql/keep.sql")),
            intact: sql(include_str!("../sql/intact.sql")),
            held: sql(include_str!("../sql/held.sql")),
            status: sql(include_str!("../sql/status.sql")),
            sweep: sql(include_str!("../sql/sweep.sql")),
            verify: sql(include_str!("../sql/verify.sql")),
        }
    }

    pub(super) fn are_cached(&self) -> bool {
        self.verify.mode == StatementMode::Cached
    }
}

impl Sql {
    /// Begins to send the statement. sqlx logs its text, never its parameters.
    pub(super) fn query(&self) -> Query<'_, Postgres, PgArguments> {
        sqlx::query(&self.text).persistent(self.mode == StatementMode::Cached)
    }
}

/// A `timestamptz` as the server sends it, which is only ever sent back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment(i64);

/// The type `timestamptz` in every PostgreSQL.
const TIMESTAMPTZ: Oid = Oid(1184);

impl Type<Postgres> for Moment {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }

    fn compatible(ty: &PgTypeInfo) -> bool {
        ty.oid() == Some(TIMESTAMPTZ)
    }
}

impl Decode<'_, Postgres> for Moment {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        let microseconds = value.as_bytes()?.try_into()?;
        Ok(Self(i64::from_be_bytes(microseconds)))
    }
}

impl Encode<'_, Postgres> for Moment {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend(&self.0.to_be_bytes());
        Ok(IsNull::No)
    }
}
