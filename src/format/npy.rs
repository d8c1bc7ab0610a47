//! NumPy's file format for one-dimensional little-endian arrays, version 1.0.

use thiserror::Error;

const MAGIC: &[u8; 8] = b"\x93NUMPY\x01\x00";
/// Magic, version and the header's length.
const PREFIX: usize = 10;
/// Data starts on a multiple of this.
const ALIGNMENT: usize = 64;

/// Why a file is not the vector it should be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NpyError {
    /// Not a NumPy file of version 1.0.
    #[error("not a NumPy file of version 1.0")]
    Magic,
    /// The header does not describe a little-endian int32 vector.
    #[error("its header is {0:?}, expected that of a one-dimensional array of '<i4'")]
    Header(String),
    /// More or fewer bytes than the header says.
    #[error("{found} values follow the header, expected {expected}")]
    Length { found: usize, expected: usize },
}

/// The bytes before the data of a vector of `length` values of type `descr` (`<i4`, `<i8`, `<f4`).
pub fn header(descr: &str, length: u64) -> Vec<u8> {
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({length},), }}");
    // A line break ends the header.
    let padded = (PREFIX + text.len() + 1).next_multiple_of(ALIGNMENT) - PREFIX;
    text.extend(std::iter::repeat_n(' ', padded - 1 - text.len()));
    text.push('\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

/// A whole file of one int32 vector.
pub fn int32_file(values: &[i32]) -> Vec<u8> {
    let mut file = header("<i4", values.len() as u64);
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    file
}

/// Reads a file of one int32 vector, which `gene_order.npy` is.
///
/// # Errors
/// When it is anything else.
pub fn parse_int32(file: &[u8]) -> Result<Vec<i32>, NpyError> {
    let rest = file.strip_prefix(MAGIC).ok_or(NpyError::Magic)?;
    let (length, rest) = rest.split_first_chunk::<2>().ok_or(NpyError::Magic)?;
    let length = usize::from(u16::from_le_bytes(*length));
    let (text, data) = rest.split_at_checked(length).ok_or(NpyError::Magic)?;
    let text = String::from_utf8_lossy(text);
    let plain: String = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .collect::<String>()
        .replace('"', "'");
    let described = plain.contains("'descr':'<i4'") && plain.contains("'fortran_order':False");
    let shape = plain
        .split_once("'shape':(")
        .and_then(|(_, rest)| rest.split_once(",)"));
    let expected = shape.and_then(|(length, _)| length.parse::<usize>().ok());
    let Some(expected) = expected.filter(|_| described) else {
        return Err(NpyError::Header(text.trim_end().to_owned()));
    };
    if expected.checked_mul(4) != Some(data.len()) {
        return Err(NpyError::Length {
            found: data.len() / 4,
            expected,
        });
    }
    Ok(data
        .chunks_exact(4)
        .map(|b| i32::from_le_bytes(b.try_into().expect("four bytes")))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_starts_on_a_multiple_of_64_whatever_the_length() {
        for length in [0, 1, 99, 100, 1 << 40, u64::MAX] {
            let header = header("<i8", length);
            assert_eq!(header.len() % 64, 0);
            assert_eq!(header.last(), Some(&b'\n'));
        }
    }

    #[test]
    fn a_vector_reads_back() {
        let values = [3, -1, i32::MAX];
        assert_eq!(parse_int32(&int32_file(&values)), Ok(values.to_vec()));
        assert_eq!(parse_int32(&int32_file(&[])), Ok(vec![]));
    }

    #[test]
    fn anything_else_is_refused() {
        let good = int32_file(&[1, 2, 3]);
        assert_eq!(parse_int32(&good[..4]), Err(NpyError::Magic));
        assert_eq!(
            parse_int32(&good[..good.len() - 4]),
            Err(NpyError::Length { found: 2, expected: 3 })
        );
        let mut floats = header("<f4", 1);
        floats.extend([0; 4]);
        assert!(matches!(parse_int32(&floats), Err(NpyError::Header(_))));
    }
}
