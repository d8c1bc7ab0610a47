//! Stored numbers to numbers: byte orders, widths, and what makes a number a count. Knows no files.

use arrow::array::{ArrayRef, PrimitiveArray};
use arrow::datatypes::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use half::f16 as F16;
use std::fmt::Display;
use std::sync::Arc;

use crate::convert::error::CountFault;
use crate::format::obs::NumericType;

/// A number type as a file stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredNumber {
    pub(crate) kind: NumericType,
    pub(crate) big_endian: bool,
}

/// A value that is not a count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotACount {
    /// Its place among the values decoded.
    pub(crate) index: usize,
    /// As it would be printed.
    pub(crate) value: String,
    pub(crate) why: CountFault,
}

trait Stored: Copy + Display + PartialEq {
    type Arrow: ArrowPrimitiveType<Native = Self>;
    const SIZE: usize;
    /// `bytes` has [`Self::SIZE`] bytes.
    fn read<const BIG: bool>(bytes: &[u8]) -> Self;
    /// A count, or anything.
    fn as_count(self) -> u32;
    /// Whether there is no fault, in few operations.
    fn is_count(self) -> bool;
    fn fault(self) -> Option<CountFault>;
}

/// The largest count (format, "Limits").
const MAX_COUNT: u32 = i32::MAX as u32;

macro_rules! stored_integer {
    ($($native:ty, $arrow:ty;)*) => {$(
        impl Stored for $native {
            type Arrow = $arrow;
            const SIZE: usize = size_of::<$native>();
            #[inline(always)]
            fn read<const BIG: bool>(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$native>()];
                own.copy_from_slice(bytes);
                if BIG { Self::from_be_bytes(own) } else { Self::from_le_bytes(own) }
            }
            #[inline(always)]
            fn as_count(self) -> u32 {
                self as u32
            }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn is_count(self) -> bool {
                (self >= 0) & (self as u64 <= u64::from(MAX_COUNT))
            }
            #[allow(unused_comparisons)]
            fn fault(self) -> Option<CountFault> {
                if self < 0 {
                    Some(CountFault::Negative)
                } else if self as u64 > u64::from(MAX_COUNT) {
                    Some(CountFault::TooLarge)
                } else {
                    None
                }
            }
        }
    )*};
}

macro_rules! stored_float {
    ($($native:ty, $arrow:ty, $to:ident, $wide:ident;)*) => {$(
        impl Stored for $native {
            type Arrow = $arrow;
            const SIZE: usize = size_of::<$native>();
            #[inline(always)]
            fn read<const BIG: bool>(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$native>()];
                own.copy_from_slice(bytes);
                if BIG { Self::from_be_bytes(own) } else { Self::from_le_bytes(own) }
            }
            #[inline(always)]
            fn as_count(self) -> u32 {
                $to(self) as i32 as u32
            }
            #[inline(always)]
            fn is_count(self) -> bool {
                // A saturating cast: what is no count does not come back as it was, but for 2^31, which a narrow float
                // takes 2^31 - 1 for. To and from signed numbers, processors have instructions for several at a time.
                let count = $to(self) as i32;
                (count >= 0) & (count as $wide == $to(self)) & ((count != i32::MAX) | ($wide::MANTISSA_DIGITS >= 31))
            }
            fn fault(self) -> Option<CountFault> {
                let value = $to(self);
                // A saturating cast: a value beyond the range, or NaN, does not come back.
                let count = value as u32;
                if f64::from(count) == f64::from(value) && count <= MAX_COUNT {
                    return None;
                }
                Some(if !value.is_finite() {
                    CountFault::NotFinite
                } else if value < 0.0 {
                    CountFault::Negative
                } else if value.fract() != 0.0 {
                    CountFault::Fraction
                } else {
                    CountFault::TooLarge
                })
            }
        }
    )*};
}

fn same32(value: f32) -> f32 {
    value
}
fn same64(value: f64) -> f64 {
    value
}
fn widen(value: F16) -> f32 {
    value.to_f32()
}

stored_integer! {
    i8, Int8Type;
    i16, Int16Type;
    i32, Int32Type;
    i64, Int64Type;
    u8, UInt8Type;
    u16, UInt16Type;
    u32, UInt32Type;
    u64, UInt64Type;
}
stored_float! {
    F16, Float16Type, widen, f32;
    f32, Float32Type, same32, f32;
    f64, Float64Type, same64, f64;
}

/// Runs `$body` with `$T` naming the Rust type of `$kind`.
macro_rules! with_type {
    ($kind:expr, $T:ident => $body:expr) => {
        match $kind {
            NumericType::Int8 => {
                type $T = i8;
                $body
            }
            NumericType::Int16 => {
                type $T = i16;
                $body
            }
            NumericType::Int32 => {
                type $T = i32;
                $body
            }
            NumericType::Int64 => {
                type $T = i64;
                $body
            }
            NumericType::UInt8 => {
                type $T = u8;
                $body
            }
            NumericType::UInt16 => {
                type $T = u16;
                $body
            }
            NumericType::UInt32 => {
                type $T = u32;
                $body
            }
            NumericType::UInt64 => {
                type $T = u64;
                $body
            }
            NumericType::Float16 => {
                type $T = F16;
                $body
            }
            NumericType::Float32 => {
                type $T = f32;
                $body
            }
            NumericType::Float64 => {
                type $T = f64;
                $body
            }
        }
    };
}

impl StoredNumber {
    /// Appends the values of `bytes` to `counts`.
    ///
    /// # Errors
    /// The first value that is not a count.
    pub(crate) fn counts(self, bytes: &[u8], counts: &mut Vec<u32>) -> Result<(), NotACount> {
        with_type!(self.kind, T => match self.big_endian {
            true => counts_of::<T, true>(bytes, counts),
            false => counts_of::<T, false>(bytes, counts),
        })
    }

    /// The values of `bytes` as row or column numbers below `limit`.
    ///
    /// # Errors
    /// The place and value of the first that is none.
    pub(crate) fn indices(self, bytes: &[u8], limit: u32, indices: &mut Vec<u32>) -> Result<(), (usize, String)> {
        let from = indices.len();
        self.counts(bytes, indices).map_err(|bad| (bad.index, bad.value))?;
        match indices[from..].iter().position(|&index| index >= limit) {
            None => Ok(()),
            Some(at) => Err((at, indices[from + at].to_string())),
        }
    }

    /// The values of `bytes` as offsets.
    ///
    /// # Errors
    /// The place and value of the first that is negative or not whole.
    pub(crate) fn offsets(self, bytes: &[u8]) -> Result<Vec<u64>, (usize, String)> {
        let mut out = Vec::with_capacity(bytes.len() / self.kind.width());
        macro_rules! whole {
            ($($kind:ident $native:ty),*) => {
                match self.kind {
                    $(NumericType::$kind => each::<$native, _>(bytes, self.big_endian, |index, value| {
                        out.push(u64::try_from(value).map_err(|_| (index, value.to_string()))?);
                        Ok(())
                    })?,)*
                    kind => return Err((0, format!("of type {}", kind.arrow_name()))),
                }
            };
        }
        whole!(Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64);
        Ok(out)
    }

    /// The values of `bytes` as codes: whole numbers that may be negative. What is none, or too large, is below -1.
    pub(crate) fn signed(self, bytes: &[u8]) -> Vec<i64> {
        const NO_CODE: i64 = i64::MIN;
        macro_rules! codes {
            ($($kind:ident $native:ty),*) => {
                match self.kind {
                    $(NumericType::$kind => {
                        map(bytes, self.big_endian, |value: $native| i64::try_from(value).unwrap_or(NO_CODE))
                    })*
                    _ => vec![NO_CODE; bytes.len() / self.kind.width()],
                }
            };
        }
        codes!(Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64)
    }

    /// The values of `bytes` as an Arrow array of the same type; `missing` marks values that are none.
    ///
    /// NaN is missing too: that is what pandas means by it.
    pub(crate) fn array(self, bytes: &[u8], missing: Option<&[bool]>) -> ArrayRef {
        with_type!(self.kind, T => match self.big_endian {
            true => array_of::<T, true>(bytes, missing),
            false => array_of::<T, false>(bytes, missing),
        })
    }

    /// The values as Python's `str` prints them, for use as labels.
    pub(crate) fn labels(self, bytes: &[u8]) -> Vec<String> {
        match self.kind {
            NumericType::Float16 => map(bytes, self.big_endian, |v: F16| {
                python_float(format!("{:?}", v.to_f32()))
            }),
            NumericType::Float32 => map(bytes, self.big_endian, |v: f32| python_float(format!("{v:?}"))),
            NumericType::Float64 => map(bytes, self.big_endian, |v: f64| python_float(format!("{v:?}"))),
            _ => with_type!(self.kind, T => map(bytes, self.big_endian, |v: T| v.to_string())),
        }
    }
}

fn map<T: Stored, R>(bytes: &[u8], big: bool, f: impl Fn(T) -> R) -> Vec<R> {
    match big {
        true => bytes
            .chunks_exact(T::SIZE)
            .map(|bytes| f(T::read::<true>(bytes)))
            .collect(),
        false => bytes
            .chunks_exact(T::SIZE)
            .map(|bytes| f(T::read::<false>(bytes)))
            .collect(),
    }
}

/// Rust's shortest digits in Python's notation.
fn python_float(digits: String) -> String {
    match digits.as_str() {
        "NaN" => return "nan".into(),
        _ if digits.contains("inf") => return digits,
        _ => {}
    }
    // Python puts a sign and two digits into an exponent.
    match digits.split_once('e') {
        None => digits,
        Some((mantissa, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            let mantissa = mantissa.strip_suffix(".0").unwrap_or(mantissa);
            format!("{mantissa}e{sign}{exponent:0>2}")
        }
    }
}

fn each<T: Stored, E>(bytes: &[u8], big: bool, mut f: impl FnMut(usize, T) -> Result<(), E>) -> Result<(), E> {
    for (index, bytes) in bytes.chunks_exact(T::SIZE).enumerate() {
        f(
            index,
            if big {
                T::read::<true>(bytes)
            } else {
                T::read::<false>(bytes)
            },
        )?;
    }
    Ok(())
}

fn counts_of<T: Stored, const BIG: bool>(bytes: &[u8], counts: &mut Vec<u32>) -> Result<(), NotACount> {
    // Values are converted and checked in blocks, so that the compiler can vectorise both.
    const BLOCK: usize = 1024;
    let from = counts.len();
    counts.resize(from + bytes.len() / T::SIZE, 0);
    let blocks = counts[from..].chunks_mut(BLOCK).zip(bytes.chunks(BLOCK * T::SIZE));
    for (block, (counts, bytes)) in blocks.enumerate() {
        let mut bad = false;
        for (count, bytes) in counts.iter_mut().zip(bytes.chunks_exact(T::SIZE)) {
            let value = T::read::<BIG>(bytes);
            bad |= !value.is_count();
            *count = value.as_count();
        }
        if bad {
            for (index, bytes) in bytes.chunks_exact(T::SIZE).enumerate() {
                let value = T::read::<BIG>(bytes);
                if let Some(why) = value.fault() {
                    let index = block * BLOCK + index;
                    return Err(NotACount {
                        index,
                        value: value.to_string(),
                        why,
                    });
                }
            }
        }
    }
    Ok(())
}

#[allow(clippy::eq_op)] // NaN is the value that differs from itself
fn array_of<T: Stored, const BIG: bool>(bytes: &[u8], missing: Option<&[bool]>) -> ArrayRef {
    let array: PrimitiveArray<T::Arrow> = bytes
        .chunks_exact(T::SIZE)
        .enumerate()
        .map(|(index, bytes)| {
            let value = T::read::<BIG>(bytes);
            let present = value == value && missing.is_none_or(|missing| missing.get(index) != Some(&true));
            present.then_some(value)
        })
        .collect();
    Arc::new(array)
}

#[cfg(test)]
mod tests {
    use super::*;

    use arrow::array::{Array, AsArray};

    fn stored(kind: NumericType) -> StoredNumber {
        StoredNumber {
            kind,
            big_endian: false,
        }
    }

    fn first_fault(kind: NumericType, bytes: &[u8]) -> (usize, CountFault) {
        let bad = stored(kind).counts(bytes, &mut Vec::new()).unwrap_err();
        (bad.index, bad.why)
    }

    #[test]
    fn whole_numbers_of_every_type_are_counts() {
        macro_rules! check {
            ($($kind:ident $native:ty),*) => {$({
                let values: [$native; 3] = [0 as $native, 1 as $native, 100 as $native];
                for big_endian in [false, true] {
                    let bytes: Vec<u8> = values
                        .iter()
                        .flat_map(|v| if big_endian { v.to_be_bytes() } else { v.to_le_bytes() })
                        .collect();
                    let mut counts = vec![9];
                    StoredNumber { kind: NumericType::$kind, big_endian }.counts(&bytes, &mut counts).unwrap();
                    assert_eq!(counts, [9, 0, 1, 100], "{:?} {big_endian}", NumericType::$kind);
                }
            })*};
        }
        check!(Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 u8, UInt16 u16, UInt32 u32, UInt64 u64, Float32 f32, Float64 f64);
        let halves: Vec<u8> = [0.0, 1.0, 2048.0]
            .iter()
            .flat_map(|&v| F16::from_f32(v).to_le_bytes())
            .collect();
        let mut counts = Vec::new();
        stored(NumericType::Float16).counts(&halves, &mut counts).unwrap();
        assert_eq!(counts, [0, 1, 2048]);
    }

    #[test]
    fn what_is_not_a_count_is_told_with_its_place_and_reason() {
        let f64s = |values: &[f64]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
        let mut many = vec![1.0; 3000];
        many[2500] = 0.5;
        assert_eq!(
            first_fault(NumericType::Float64, &f64s(&many)),
            (2500, CountFault::Fraction)
        );
        for (value, why) in [
            (-1.0, CountFault::Negative),
            (-0.5, CountFault::Negative),
            (f64::NAN, CountFault::NotFinite),
            (f64::INFINITY, CountFault::NotFinite),
            (2147483648.0, CountFault::TooLarge),
            (1e300, CountFault::TooLarge),
        ] {
            assert_eq!(
                first_fault(NumericType::Float64, &f64s(&[2147483647.0, value])),
                (1, why),
                "{value}"
            );
        }
        let f32s: Vec<u8> = [1f32, 2147483648.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(first_fault(NumericType::Float32, &f32s), (1, CountFault::TooLarge));
        assert_eq!(
            first_fault(NumericType::Int64, &(-3i64).to_le_bytes()),
            (0, CountFault::Negative)
        );
        assert_eq!(
            first_fault(NumericType::Int64, &(1i64 << 32).to_le_bytes()),
            (0, CountFault::TooLarge)
        );
        assert_eq!(
            first_fault(NumericType::UInt64, &u64::MAX.to_le_bytes()),
            (0, CountFault::TooLarge)
        );
    }

    #[test]
    fn the_quick_look_at_a_float_agrees_with_the_careful_one() {
        let whole = [0.0, -0.0, 1.0, 65535.0, 16777216.0, 2147483520.0, 2147483647.0];
        let not = [
            0.5,
            -1.0,
            -2147483648.0,
            2147483647.5,
            2147483648.0,
            4294967296.0,
            1e300,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MIN_POSITIVE,
        ];
        for value in whole.into_iter().chain(not) {
            assert_eq!(value.is_count(), value.fault().is_none(), "{value}");
            assert_eq!((value as f32).is_count(), (value as f32).fault().is_none(), "{value}");
            let half = F16::from_f64(value);
            assert_eq!(half.is_count(), half.fault().is_none(), "{value}");
        }
        assert!(
            whole
                .into_iter()
                .all(|value| f64::is_count(value) && f64::as_count(value) == value as u32)
        );
        assert!(!not.into_iter().any(f64::is_count));
    }

    #[test]
    fn an_index_at_or_above_its_limit_is_refused() {
        let bytes: Vec<u8> = [3i32, 4].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(
            stored(NumericType::Int32).indices(&bytes, 4, &mut Vec::new()),
            Err((1, "4".into()))
        );
        assert_eq!(stored(NumericType::Int32).indices(&bytes, 5, &mut Vec::new()), Ok(()));
        assert_eq!(
            stored(NumericType::Int32).indices(&(-1i32).to_le_bytes(), 5, &mut Vec::new()),
            Err((0, "-1".into()))
        );
    }

    #[test]
    fn nan_and_masked_values_are_nulls() {
        let bytes: Vec<u8> = [1.5f32, f32::NAN, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let array = stored(NumericType::Float32).array(&bytes, Some(&[false, false, true]));
        let array = array.as_primitive::<Float32Type>();
        assert_eq!((array.value(0), array.is_null(1), array.is_null(2)), (1.5, true, true));
    }

    #[test]
    fn labels_of_numbers_are_those_of_python() {
        let bytes: Vec<u8> = [1.0, 0.1, -2.5, 1e16, 1.5e-7, f64::NAN, 123456.75]
            .iter()
            .flat_map(|v: &f64| v.to_le_bytes())
            .collect();
        let labels = stored(NumericType::Float64).labels(&bytes);
        assert_eq!(labels, ["1.0", "0.1", "-2.5", "1e+16", "1.5e-07", "nan", "123456.75"]);
        assert_eq!(stored(NumericType::Int16).labels(&(-7i16).to_le_bytes()), ["-7"]);
    }
}
