//! JSON as Python's `json.dumps` writes it with its defaults, byte for byte.
//!
//! The obs fingerprint is a hash of such text (format, "Fingerprint"), so another serialiser's spacing or
//! escapes would be another fingerprint. Knows nothing of what is written.

use std::fmt::Write;

/// Appends `value` in double quotes: everything but printable ASCII escaped, above U+FFFF as a surrogate pair.
pub fn push_string(text: &mut String, value: &str) {
    text.reserve(value.len() + 2);
    text.push('"');
    for character in value.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            ' '..='~' => text.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(text, "\\u{unit:04x}").expect("a String takes any text");
                }
            }
        }
    }
    text.push('"');
}

/// Appends a list, each item as `push_item` writes it.
pub fn push_list<T>(text: &mut String, items: impl IntoIterator<Item = T>, mut push_item: impl FnMut(&mut String, T)) {
    text.push('[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        push_item(text, item);
    }
    text.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped_as_python_escapes_them() {
        // Right-hand sides are what `json.dumps` of Python 3.11 printed.
        for (value, expected) in [
            ("", r#""""#),
            ("plain / text~", r#""plain / text~""#),
            ("\"\\", r#""\"\\""#),
            ("\n\r\t\u{8}\u{c}", r#""\n\r\t\b\f""#),
            ("\u{0}\u{1f}\u{7f}\u{80}", r#""\u0000\u001f\u007f\u0080""#),
            ("na\u{ef}ve", r#""na\u00efve""#),
            ("\u{2028}\u{ffff}", r#""\u2028\uffff""#),
            ("\u{1f9ec}", r#""\ud83e\uddec""#),
        ] {
            let mut text = String::new();
            push_string(&mut text, value);
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn lists_are_separated_by_a_comma_and_a_space() {
        let list = |items: &[u64]| {
            let mut text = String::new();
            push_list(&mut text, items, |text, item| text.push_str(&item.to_string()));
            text
        };
        assert_eq!(list(&[]), "[]");
        assert_eq!(list(&[7]), "[7]");
        assert_eq!(list(&[7, 8, 9]), "[7, 8, 9]");
    }
}
