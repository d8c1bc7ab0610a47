//! Who may read a file, as one owner, one group and one set of mode bits.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Owner, group and permission bits.
///
/// Permissions along a path do not fold into one set of bits without loss; where they do not,
/// [`Access::below`] gives the smaller set: nobody is let in who would have been kept out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// `rwxrwxrwx`.
    pub mode: u16,
}

const OTHER_PASSES: u16 = 0o001;
const GROUP_PASSES: u16 = 0o010;
const OWNER_PASSES: u16 = 0o100;

impl Access {
    /// What the file itself says.
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            uid: metadata.uid(),
            gid: metadata.gid(),
            mode: (metadata.mode() & 0o777) as u16,
        }
    }

    /// The same file, for those who must first pass through `folder`.
    pub fn below(self, folder: Access) -> Self {
        let passes = |bit| folder.mode & bit != 0;
        let other = passes(OTHER_PASSES);
        // A member of the folder's group is judged by the group bits alone; whether a member of the file's group
        // is one of the folder's is only known when they are the same.
        let other_of_any_group = other && passes(GROUP_PASSES);
        let group = if self.gid == folder.gid {
            passes(GROUP_PASSES)
        } else {
            other_of_any_group
        };
        let owner = if self.uid == folder.uid {
            passes(OWNER_PASSES)
        } else {
            other_of_any_group
        };
        let mut mode = self.mode;
        for (lets_pass, bits) in [
            (owner, 0o700),
            (group && (self.uid != folder.uid || owner), 0o070),
            (other_of_any_group, 0o007),
        ] {
            if !lets_pass {
                mode &= !bits;
            }
        }
        Self { mode, ..self }
    }

    /// What may be read of something made of both files.
    pub fn and(self, other: Access) -> Self {
        let same = (self.uid == other.uid, self.gid == other.gid);
        let mut mode = self.mode & other.mode;
        if !same.0 {
            mode &= !0o700;
        }
        if !same.1 {
            mode &= !0o070;
        }
        Self { mode, ..self }
    }

    /// The bits of a file that may be read by those who may read this one.
    pub fn file_mode(self) -> u16 {
        self.mode & 0o444
    }

    /// The bits of a folder that may be listed and entered by those who may list and enter this one.
    pub fn folder_mode(self) -> u16 {
        self.mode & 0o555
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(uid: u32, gid: u32, mode: u16) -> Access {
        Access { uid, gid, mode }
    }

    #[test]
    fn an_open_folder_changes_nothing() {
        let file = access(5, 6, 0o644);
        assert_eq!(file.below(access(0, 0, 0o755)), file);
        assert_eq!(file.below(access(5, 6, 0o711)), file);
    }

    #[test]
    fn a_private_folder_leaves_its_owner() {
        let file = access(5, 6, 0o644);
        assert_eq!(file.below(access(5, 6, 0o700)).mode, 0o600);
        assert_eq!(file.below(access(5, 9, 0o700)).mode, 0o600);
        assert_eq!(file.below(access(0, 0, 0o700)).mode, 0);
    }

    #[test]
    fn a_group_folder_leaves_owner_and_group() {
        let file = access(5, 6, 0o644);
        assert_eq!(file.below(access(5, 6, 0o750)).mode, 0o640);
        assert_eq!(
            file.below(access(0, 6, 0o750)).mode,
            0o040,
            "whether the owner is in the group is not known"
        );
        assert_eq!(file.below(access(0, 9, 0o750)).mode, 0);
    }

    #[test]
    fn a_folder_closed_to_its_group_alone_closes_every_class_that_may_hold_a_member() {
        let file = access(5, 6, 0o644);
        assert_eq!(file.below(access(0, 9, 0o705)).mode, 0);
        assert_eq!(file.below(access(5, 9, 0o705)).mode, 0o600);
    }

    #[test]
    fn two_owners_have_only_the_rest_in_common() {
        assert_eq!(access(5, 6, 0o644).and(access(5, 6, 0o640)), access(5, 6, 0o640));
        assert_eq!(access(5, 6, 0o644).and(access(7, 6, 0o644)).mode, 0o044);
        assert_eq!(access(5, 6, 0o644).and(access(7, 8, 0o644)).mode, 0o004);
    }
}
