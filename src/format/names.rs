//! What a column's file is called.
//!
//! Knows no folders: that two columns never get one name is a property of the rule itself.

use sha2::{Digest, Sha256};

use super::fingerprint::hex;

/// The longest name a directory entry can have, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// Stands before the hash of a cut name. Percent-encoding never leaves it, so no whole name looks like a cut one.
const CUT: char = '+';

/// The file name of a column: `column` percent-encoded, then `extension`, which begins with its dot.
///
/// Everything but ASCII letters, digits and `_.-~` becomes `%XX`, as in the local obs cache (format notes), so
/// the name of the column can be had back from the name of the file. The rule has no exceptions: the column `..` is in
/// `...arrow`, and one without a name is in `.arrow`, which `ls` shows with `-a` alone.
///
/// A name beyond [`MAX_NAME_BYTES`] is cut before the first character or `%XX` that does not fit, and ends in `+` and the SHA-256 of the
/// column's whole name in hex. Two columns of different names therefore have different files.
///
/// `extension` is plain ASCII of a few characters.
///
/// ```
/// use dcfs::format::names::column_file_name;
/// assert_eq!(column_file_name("donor id", ".arrow"), "donor%20id.arrow");
/// ```
pub fn column_file_name(column: &str, extension: &str) -> String {
    if let Some(whole) = whole_column_file_name(column, extension) {
        return whole;
    }
    let end = format!("{CUT}{}{extension}", hex(&Sha256::digest(column)));
    encode(column, MAX_NAME_BYTES - end.len()) + &end
}

/// The same where it fits in [`MAX_NAME_BYTES`]; `None` where it would have to be cut.
pub fn whole_column_file_name(column: &str, extension: &str) -> Option<String> {
    let whole = encode(column, usize::MAX) + extension;
    (whole.len() <= MAX_NAME_BYTES).then_some(whole)
}

/// `column` percent-encoded, as far as whole characters of the encoding fit in `most` bytes.
fn encode(column: &str, most: usize) -> String {
    let mut name = String::with_capacity(column.len());
    for byte in column.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte);
        if name.len() + if plain { 1 } else { 3 } > most {
            break;
        }
        if plain {
            name.push(byte.into());
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_encoded_as_in_the_local_cache() {
        // Right-hand sides are `urllib.parse.quote(name, safe="")` of Python 3.11.
        for (column, expected) in [
            ("cell_type", "cell_type.arrow"),
            ("donor id", "donor%20id.arrow"),
            ("a/b", "a%2Fb.arrow"),
            ("100%", "100%25.arrow"),
            ("x-y.z~", "x-y.z~.arrow"),
            ("\u{e9}\u{1f9ec}+", "%C3%A9%F0%9F%A7%AC%2B.arrow"),
            ("\0\n", "%00%0A.arrow"),
        ] {
            assert_eq!(column_file_name(column, ".arrow"), expected);
        }
    }

    #[test]
    fn every_column_has_a_name_that_a_directory_can_hold() {
        for column in ["", ".", "..", "/", "\0", &"\u{e9}".repeat(300), &"a".repeat(100_000)] {
            let name = column_file_name(column, ".arrow");
            assert!(name.len() <= MAX_NAME_BYTES, "{name}");
            assert!(
                !name.contains(['/', '\0']) && !["", ".", ".."].contains(&name.as_str()),
                "{name}"
            );
        }
    }

    #[test]
    fn a_name_is_cut_only_when_it_must_be_and_never_inside_an_escape() {
        let longest = "a".repeat(249);
        assert_eq!(column_file_name(&longest, ".arrow"), format!("{longest}.arrow"));
        let cut = column_file_name(&"a".repeat(250), ".arrow");
        assert_eq!(cut.len(), 255);
        for lead in 0..3 {
            let column = "a".repeat(lead) + &" ".repeat(200);
            let name = column_file_name(&column, ".arrow");
            let (start, _) = name.split_once(CUT).unwrap();
            assert!(
                start[lead..].len().is_multiple_of(3) && start.ends_with("%20"),
                "{name}"
            );
            assert!(name.len() > 252, "{name}");
        }
    }

    #[test]
    fn columns_that_share_a_beginning_have_different_names() {
        let start = "a".repeat(300);
        let mut columns: Vec<String> = (0..100).map(|i| format!("{start}{i}")).collect();
        // The name of a cut file is itself a possible column.
        columns.push(
            column_file_name(&columns[0], ".arrow")
                .trim_end_matches(".arrow")
                .into(),
        );
        columns.extend(["a b", "a%20b", "a%2520b", "", "."].map(String::from));
        let names: HashSet<_> = columns
            .iter()
            .map(|column| column_file_name(column, ".arrow"))
            .collect();
        assert_eq!(names.len(), columns.len());
    }
}
