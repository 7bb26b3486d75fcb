//! CPU time of the service and of the database: steadier than rates on a shared machine.

use std::{fs, ops::Sub, path::Path, time::Duration};

/// CPU time that was used so far. Zero where `/proc` does not tell.
#[derive(Clone, Copy)]
pub(super) struct Cpu {
    pub(super) service: Duration,
    pub(super) database: Duration,
}

impl Cpu {
    /// Reads it, for this process and for the server with this data folder.
    pub(super) fn now(service: u32, data_dir: &Path) -> Self {
        let postmaster = fs::read_to_string(data_dir.join("postmaster.pid")).unwrap_or_default();
        let postmaster = postmaster.lines().next().unwrap_or_default().to_owned();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let stats = processes.filter_map(|process| Stat::read(&process.path()));
        let database = stats
            .filter(|stat| stat.parent == postmaster)
            .map(|stat| stat.used)
            .sum();
        let own = Path::new("/proc").join(service.to_string());
        Self {
            service: Stat::read(&own).map_or(Duration::ZERO, |stat| stat.used),
            database,
        }
    }
}

impl Sub for Cpu {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            service: self.service.saturating_sub(earlier.service),
            database: self.database.saturating_sub(earlier.database),
        }
    }
}

struct Stat {
    parent: String,
    used: Duration,
}

impl Stat {
    fn read(process: &Path) -> Option<Self> {
        let stat = fs::read_to_string(process.join("stat")).ok()?;
        // The name before it may hold anything.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let parent = fields.nth(1)?.to_owned();
        let user: u64 = fields.nth(9)?.parse().ok()?;
        let system: u64 = fields.next()?.parse().ok()?;
        // A tick is 10 ms on every Linux that this is meant for.
        Some(Self {
            parent,
            used: Duration::from_millis(10 * (user + system)),
        })
    }
}
