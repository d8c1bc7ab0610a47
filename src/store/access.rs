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

/// The only version of access control lists there is, and the tags of their entries (linux/posix_acl_xattr.h).
const ACL_VERSION: u32 = 2;
const ACL_ENTRY_BYTES: usize = 8;
const ACL_OWNER: u16 = 0x01;
const ACL_USER: u16 = 0x02;
const ACL_OWNING_GROUP: u16 = 0x04;
const ACL_GROUP: u16 = 0x08;
const ACL_MASK: u16 = 0x10;
const ACL_OTHERS: u16 = 0x20;

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

    /// The same file with the access control list `acl`, as the kernel stores it in `system.posix_acl_access`.
    ///
    /// With such a list, the group bits of the mode are the most that anybody but the owner gets, and users and groups
    /// named in it may get less than the others. Bits stay where all of those have them; what a named user gets
    /// beyond that, the mount does not give.
    pub(super) fn with_acl(self, acl: &[u8]) -> Self {
        let (owner, mut group, mut rest) = self.classes();
        let mut mask = 0o7;
        let mut named = 0o7;
        let entries = acl.get(4..).filter(|_| acl.starts_with(&ACL_VERSION.to_le_bytes()));
        let Some(entries) = entries.filter(|entries| entries.len().is_multiple_of(ACL_ENTRY_BYTES)) else {
            return self.for_owner_only();
        };
        for entry in entries.chunks_exact(ACL_ENTRY_BYTES) {
            let permissions = u16::from_le_bytes([entry[2], entry[3]]) & 0o7;
            match u16::from_le_bytes([entry[0], entry[1]]) {
                ACL_OWNER => {}
                ACL_USER | ACL_GROUP => named &= permissions,
                ACL_OWNING_GROUP => group = permissions,
                ACL_MASK => mask = permissions,
                ACL_OTHERS => rest = permissions,
                _ => return self.for_owner_only(),
            }
        }
        let mode = owner << 6 | (group & mask & named) << 3 | (rest & named & if named == 0o7 { 0o7 } else { mask });
        Self { mode, ..self }
    }

    /// The same file, closed to everybody but its owner.
    pub(super) fn for_owner_only(self) -> Self {
        Self {
            mode: self.mode & 0o700,
            ..self
        }
    }

    /// The same file, closed to everybody.
    pub fn for_nobody(self) -> Self {
        Self { mode: 0, ..self }
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
    ///
    /// Where owner or group differ, it is not known what somebody of this file is to the other one: they get what every
    /// class that they may be in gets there.
    pub fn and(self, other: Access) -> Self {
        let (owner, group, rest) = other.classes();
        let stranger_to_owner = if self.uid == other.uid { 0o7 } else { owner };
        let stranger_to_group = if self.gid == other.gid { 0o7 } else { group };
        let as_owner = if self.uid == other.uid { owner } else { group & rest };
        let as_member = if self.gid == other.gid { group } else { group & rest };
        let (own_owner, own_group, own_rest) = self.classes();
        let mode = (own_owner & as_owner) << 6
            | (own_group & as_member & stranger_to_owner) << 3
            | (own_rest & rest & stranger_to_owner & stranger_to_group);
        Self { mode, ..self }
    }

    /// The three bits of owner, group and others.
    fn classes(self) -> (u16, u16, u16) {
        (self.mode >> 6 & 0o7, self.mode >> 3 & 0o7, self.mode & 0o7)
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
    fn what_two_files_make_is_for_those_who_may_read_both() {
        assert_eq!(access(5, 6, 0o644).and(access(5, 6, 0o640)), access(5, 6, 0o640));
        assert_eq!(access(5, 6, 0o644).and(access(7, 8, 0o644)).mode, 0o444);
        assert_eq!(access(5, 6, 0o600).and(access(7, 6, 0o600)).mode, 0);
        assert_eq!(
            access(5, 6, 0o640).and(access(7, 6, 0o640)).mode,
            0o040,
            "the owner may not be in the group"
        );
    }

    #[test]
    fn a_group_that_one_file_shuts_out_is_not_let_in_as_the_others_of_another() {
        assert_eq!(access(0, 0, 0o644).and(access(0, 6000, 0o604)).mode, 0o600);
        assert_eq!(access(0, 6000, 0o604).and(access(0, 0, 0o644)).mode, 0o604);
        assert_eq!(access(0, 0, 0o644).and(access(9, 0, 0o044)).mode, 0o400);
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn the_group_bits_of_a_file_with_an_acl_are_those_of_its_group_not_the_mask() {
        let file = access(0, 5000, 0o640);
        let list = acl(&[(1, 6, 0), (2, 4, 1234), (4, 0, 0), (0x10, 4, 0), (0x20, 0, 0)]);
        assert_eq!(file.with_acl(&list).mode, 0o600);
    }

    #[test]
    fn whom_an_acl_denies_is_not_let_in_with_the_others() {
        let file = access(0, 0, 0o644);
        let list = acl(&[(1, 6, 0), (2, 0, 6000), (4, 4, 0), (0x10, 4, 0), (0x20, 4, 0)]);
        assert_eq!(file.with_acl(&list).mode, 0o600);
    }

    #[test]
    fn an_acl_that_cannot_be_understood_leaves_the_owner() {
        assert_eq!(access(0, 0, 0o644).with_acl(&[9, 9]).mode, 0o600);
        assert_eq!(access(0, 0, 0o644).with_acl(&acl(&[(77, 4, 0)])).mode, 0o600);
    }

    #[test]
    fn a_plain_acl_says_what_the_mode_says() {
        let list = acl(&[(1, 6, 0), (4, 4, 0), (0x20, 4, 0)]);
        assert_eq!(access(0, 0, 0o644).with_acl(&list).mode, 0o644);
    }
}
