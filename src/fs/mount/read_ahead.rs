//! How far the kernel reads ahead on a mount: a setting of its backing device information, which outlives no mount.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::table::Device;

/// What became of the wish for more read-ahead.
#[derive(Debug)]
pub enum ReadAhead {
    /// It was raised from this many KiB.
    Raised { from: u32 },
    /// It was this many KiB already, which is enough.
    Enough { kib: u32 },
    /// It stays as it was: only root may change it, and only where `/sys` is mounted for writing.
    Unchanged { reason: io::Error },
}

/// Raises the read-ahead of the file system `device` to `kib` KiB, where that is permitted. Reads through FUSE are up to
/// twice as fast with it; everything works without.
pub fn raise(device: Device, kib: u32) -> ReadAhead {
    let result = raise_at(Path::new("/sys/class/bdi"), device, kib);
    if let ReadAhead::Unchanged { reason } = &result {
        log::info!("the kernel's read-ahead stays as it is: {reason}");
    }
    result
}

fn raise_at(bdi: &Path, device: Device, kib: u32) -> ReadAhead {
    let setting = bdi.join(device.to_string()).join("read_ahead_kb");
    match try_raise(&setting, kib) {
        Ok(from) if from >= kib => ReadAhead::Enough { kib: from },
        Ok(from) => ReadAhead::Raised { from },
        Err(error) => ReadAhead::Unchanged {
            reason: io::Error::new(error.kind(), format!("{}: {error}", setting.display())),
        },
    }
}

/// Returns what the setting was before.
fn try_raise(setting: &PathBuf, kib: u32) -> io::Result<u32> {
    let text = fs::read_to_string(setting)?;
    let current = text.trim().parse().map_err(io::Error::other)?;
    if current < kib {
        fs::write(setting, kib.to_string())?;
    }
    Ok(current)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device = Device { major: 0, minor: 51 };

    fn fake(current: &str) -> PathBuf {
        let bdi = std::env::temp_dir().join(format!("dcfs-bdi-{}-{}", std::process::id(), current.trim()));
        fs::create_dir_all(bdi.join("0:51")).unwrap();
        fs::write(bdi.join("0:51/read_ahead_kb"), current).unwrap();
        bdi
    }

    #[test]
    fn a_smaller_read_ahead_is_raised() {
        let bdi = fake("128\n");
        assert!(matches!(raise_at(&bdi, DEVICE, 1024), ReadAhead::Raised { from: 128 }));
        assert_eq!(fs::read_to_string(bdi.join("0:51/read_ahead_kb")).unwrap(), "1024");
        fs::remove_dir_all(bdi).unwrap();
    }

    #[test]
    fn a_larger_read_ahead_is_left_alone() {
        let bdi = fake("4096\n");
        assert!(matches!(raise_at(&bdi, DEVICE, 1024), ReadAhead::Enough { kib: 4096 }));
        assert_eq!(fs::read_to_string(bdi.join("0:51/read_ahead_kb")).unwrap(), "4096\n");
        fs::remove_dir_all(bdi).unwrap();
    }

    #[test]
    fn an_absent_setting_is_said_with_its_path() {
        let ReadAhead::Unchanged { reason } = raise_at(Path::new("/nonexistent"), DEVICE, 1024) else {
            panic!("there was nothing to raise");
        };
        assert!(reason.to_string().contains("/nonexistent/0:51/read_ahead_kb"));
    }
}
