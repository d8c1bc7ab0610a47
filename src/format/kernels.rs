//! The loops that touch every nonzero of a chunk, and the only `unsafe` code of the format.
//!
//! Each kernel exists once in plain Rust, which is the definition and the fallback, and where it was measured to
//! matter once for wider registers. All of them only widen, add and compare; what the results mean is decided
//! by [`super::decode`].

/// Joins byte planes: `out[i] = low[i] + 256 * high[i]`. Returns whether any result is zero.
///
/// # Panics
/// When the three lengths differ.
pub(super) fn join_planes(low: &[u8], high: &[u8], out: &mut [i32]) -> bool {
    assert!(low.len() == out.len() && high.len() == out.len());
    #[cfg(target_arch = "x86_64")]
    if has_avx512() {
        // SAFETY: the processor has the features that the function is compiled for, and the lengths were compared.
        return unsafe { x86::join_planes_avx512(low, high, out) };
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { x86::join_planes_avx2(low, high, out) };
    }
    join_planes_plain(low, high, out)
}

#[inline(always)]
fn join_planes_plain(low: &[u8], high: &[u8], out: &mut [i32]) -> bool {
    let mut zero = false;
    for ((&low, &high), out) in low.iter().zip(high).zip(out) {
        let value = i32::from(low) | i32::from(high) << 8;
        zero |= value == 0;
        *out = value;
    }
    zero
}

/// Turns the gaps of one cell, in byte planes, into gene indices: `out[i]` is the sum of gaps `0 ..= i`.
///
/// Returns whether any gap but the first is zero. The sums wrap at 2^32; see [`row_sum`].
///
/// # Panics
/// When the three lengths differ.
pub(super) fn prefix_sum(low: &[u8], high: &[u8], out: &mut [i32]) -> bool {
    assert!(low.len() == out.len() && high.len() == out.len());
    let (Some((&low0, low)), Some((&high0, high)), Some((first, out))) =
        (low.split_first(), high.split_first(), out.split_first_mut())
    else {
        return false;
    };
    *first = i32::from(low0) | i32::from(high0) << 8;
    #[cfg(target_arch = "x86_64")]
    if has_avx512() {
        // SAFETY: the processor has the features that the function is compiled for, and the lengths are still one.
        return unsafe { x86::prefix_sum_avx512(low, high, out, *first) };
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { x86::prefix_sum_avx2(low, high, out, *first) };
    }
    prefix_sum_plain(low, high, out, *first)
}

#[inline(always)]
fn prefix_sum_plain(low: &[u8], high: &[u8], out: &mut [i32], mut sum: i32) -> bool {
    let mut zero = false;
    for ((&low, &high), out) in low.iter().zip(high).zip(out) {
        let gap = i32::from(low) | i32::from(high) << 8;
        zero |= gap == 0;
        sum = sum.wrapping_add(gap);
        *out = sum;
    }
    zero
}

/// The sum of a cell's gaps, which is its last gene index, without wrapping.
pub(super) fn row_sum(low: &[u8], high: &[u8]) -> u64 {
    let plane = |bytes: &[u8]| {
        bytes
            .chunks(1 << 16)
            .map(|c| c.iter().map(|&b| u32::from(b)).sum::<u32>() as u64)
            .sum()
    };
    let (low, high): (u64, u64) = (plane(low), plane(high));
    low + 256 * high
}

/// Makes what the kernels wrote visible to other threads in the order it was written: to be called once after the last
/// of a chunk. Stores that stream past the caches are not ordered with the ones that tell others of them.
pub(super) fn finish() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl")
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// How many values a 512-bit register holds.
    const LANES: usize = 16;
    /// Bytes of such a register, and what streaming stores must be aligned to.
    const REGISTER: usize = 64;

    #[target_feature(enable = "avx2")]
    pub fn join_planes_avx2(low: &[u8], high: &[u8], out: &mut [i32]) -> bool {
        super::join_planes_plain(low, high, out)
    }

    /// How many values come before the first that is aligned for streaming stores.
    fn head(out: &[i32]) -> usize {
        out.as_ptr().align_offset(REGISTER).min(out.len())
    }

    /// Sixteen values, each of a low and a high byte.
    ///
    /// # Safety
    /// Sixteen bytes may be read from both pointers.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load(low: *const u8, high: *const u8) -> __m512i {
        // SAFETY: the caller's.
        let (low, high) = unsafe { (_mm_loadu_si128(low.cast()), _mm_loadu_si128(high.cast())) };
        let high = _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(high));
        _mm512_cvtepu16_epi32(_mm256_or_si256(_mm256_cvtepu8_epi16(low), high))
    }

    /// Writes past the caches: a chunk is larger than they are, and what zstd has in them is needed again.
    ///
    /// # Safety
    /// The three slices have one length.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub unsafe fn join_planes_avx512(low: &[u8], high: &[u8], out: &mut [i32]) -> bool {
        let head = head(out);
        let end = head + (out.len() - head) / LANES * LANES;
        let mut zero = super::join_planes_plain(&low[..head], &high[..head], &mut out[..head]);
        let mut zeros = 0;
        for at in (head..end).step_by(LANES) {
            // SAFETY: `at + 16 <= end <= len` for all three slices, and `out[at]` is aligned, by `head`.
            let values = unsafe {
                let values = load(low.as_ptr().add(at), high.as_ptr().add(at));
                _mm512_stream_si512(out.as_mut_ptr().add(at).cast(), values);
                values
            };
            zeros |= _mm512_testn_epi32_mask(values, values);
        }
        zero |= super::join_planes_plain(&low[end..], &high[end..], &mut out[end..]);
        zero || zeros != 0
    }

    /// Sixteen gaps at a time: a prefix sum within the register, by shifts of 1, 2, 4 and 8, then the carry.
    ///
    /// # Safety
    /// The three slices have one length.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub unsafe fn prefix_sum_avx512(low: &[u8], high: &[u8], out: &mut [i32], first: i32) -> bool {
        let head = head(out);
        let end = head + (out.len() - head) / LANES * LANES;
        let mut zero = super::prefix_sum_plain(&low[..head], &high[..head], &mut out[..head], first);
        let before = if head == 0 { first } else { out[head - 1] };
        let mut carry = _mm512_set1_epi32(before);
        let nothing = _mm512_setzero_si512();
        let last = _mm512_set1_epi32(LANES as i32 - 1);
        let mut zeros = 0;
        for at in (head..end).step_by(LANES) {
            // SAFETY: `at + 16 <= end <= len` for both slices.
            let gaps = unsafe { load(low.as_ptr().add(at), high.as_ptr().add(at)) };
            zeros |= _mm512_testn_epi32_mask(gaps, gaps);
            let sum = _mm512_add_epi32(gaps, _mm512_alignr_epi32::<15>(gaps, nothing));
            let sum = _mm512_add_epi32(sum, _mm512_alignr_epi32::<14>(sum, nothing));
            let sum = _mm512_add_epi32(sum, _mm512_alignr_epi32::<12>(sum, nothing));
            let sum = _mm512_add_epi32(sum, _mm512_alignr_epi32::<8>(sum, nothing));
            let result = _mm512_add_epi32(sum, carry);
            // Nothing but this addition waits for the sixteen before.
            carry = _mm512_add_epi32(carry, _mm512_permutexvar_epi32(last, sum));
            // SAFETY: as above, and `out[at]` is aligned, by `head`.
            unsafe { _mm512_stream_si512(out.as_mut_ptr().add(at).cast(), result) };
        }
        let sum = _mm512_cvtsi512_si32(carry);
        zero |= super::prefix_sum_plain(&low[end..], &high[end..], &mut out[end..], sum);
        zero || zeros != 0
    }

    /// Eight gaps at a time: a prefix sum within each half of a register, then across, then the carry.
    ///
    /// # Safety
    /// The three slices have one length.
    #[target_feature(enable = "avx2")]
    pub unsafe fn prefix_sum_avx2(low: &[u8], high: &[u8], out: &mut [i32], first: i32) -> bool {
        const LANES: usize = 8;
        let whole = out.len() / LANES * LANES;
        let mut carry = _mm256_set1_epi32(first);
        let mut zero = _mm256_setzero_si256();
        let last = _mm256_set1_epi32(7);
        let third = _mm256_set1_epi32(3);
        for at in (0..whole).step_by(LANES) {
            // SAFETY: `at + 8 <= whole <= len` for all three slices; the loads and the store ask for no alignment.
            let (l, h) = unsafe {
                (
                    _mm_loadl_epi64(low.as_ptr().add(at).cast()),
                    _mm_loadl_epi64(high.as_ptr().add(at).cast()),
                )
            };
            let gaps = _mm256_cvtepu16_epi32(_mm_unpacklo_epi8(l, h));
            zero = _mm256_or_si256(zero, _mm256_cmpeq_epi32(gaps, _mm256_setzero_si256()));
            let sum = _mm256_add_epi32(gaps, _mm256_slli_si256::<4>(gaps));
            let sum = _mm256_add_epi32(sum, _mm256_slli_si256::<8>(sum));
            // The lower half's total goes to every lane of the upper half.
            let lower = _mm256_permutevar8x32_epi32(sum, third);
            let sum = _mm256_add_epi32(sum, _mm256_blend_epi32::<0b1111_0000>(_mm256_setzero_si256(), lower));
            // The carry's chain is one addition and one permutation of what does not depend on it.
            let total = _mm256_permutevar8x32_epi32(sum, last);
            let result = _mm256_add_epi32(sum, carry);
            carry = _mm256_add_epi32(carry, total);
            // SAFETY: as above.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(at).cast(), result) };
        }
        let sum = _mm256_extract_epi32::<0>(carry);
        let rest = super::prefix_sum_plain(&low[whole..], &high[whole..], &mut out[whole..], sum);
        rest || _mm256_testz_si256(zero, zero) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planes(n: usize, seed: u64) -> (Vec<u8>, Vec<u8>) {
        let mut state = seed | 1;
        let mut byte = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (
            (0..n).map(|_| byte().max(1)).collect(),
            (0..n).map(|_| byte() & 3).collect(),
        )
    }

    #[test]
    fn wide_kernels_agree_with_plain_ones_at_every_length() {
        for n in (0..70).chain([1000, 4_097]) {
            let (low, high) = planes(n, n as u64);
            let (mut wide, mut plain) = (vec![-1; n], vec![-1; n]);
            assert_eq!(
                join_planes(&low, &high, &mut wide),
                join_planes_plain(&low, &high, &mut plain)
            );
            assert_eq!(wide, plain);
            assert_eq!(
                prefix_sum(&low, &high, &mut wide),
                prefix_sum_plain(&low, &high, &mut plain, 0)
            );
            assert_eq!(wide, plain);
            assert_eq!(row_sum(&low, &high), plain.last().map_or(0, |&s| s as u64));
        }
    }

    #[test]
    fn a_zero_is_seen_wherever_it_is() {
        for n in 1..40 {
            for at in 0..n {
                let (mut low, mut high) = planes(n, 7);
                (low[at], high[at]) = (0, 0);
                let mut out = vec![0; n];
                assert!(join_planes(&low, &high, &mut out));
                // The first gap of a cell is a gene index, which may be 0.
                assert_eq!(prefix_sum(&low, &high, &mut out), at > 0, "zero at {at} of {n}");
            }
        }
    }
}
