//! Frames: a length of 32 bits, then that many bytes.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::view::View;

const HEADER_LENGTH_MASK: u32 = 0x00FF_FFFF;

/// (start, stop) of every complete frame, and the index of the first byte after them.
pub fn split<'py>(
    py: Python<'py>,
    view: View<'_>,
    limit: i64,
) -> Option<(Bound<'py, PyList>, usize)> {
    let frames = PyList::empty(py);
    let mut start = 0;
    while let Some(word) = view.array::<4>(start) {
        let length = u32::from_be_bytes(word);
        if i64::from(length) > limit || length < 4 {
            if start == 0 {
                return None;
            }
            break;
        }
        let stop = (start + 4).checked_add(usize::try_from(length).ok()?)?;
        if stop > view.len() {
            break;
        }
        frames.append((start, stop)).ok()?;
        start = stop;
    }
    Some((frames, start))
}

/// The headline of one whole frame: encoding, and where the body begins.
pub fn headline(view: View<'_>) -> Option<(u8, usize)> {
    let length = u32::from_be_bytes(view.array(0)?);
    if usize::try_from(length).ok()? != view.len().checked_sub(4)? {
        return None;
    }
    let word = u32::from_be_bytes(view.array(4)?);
    let body_start = 8 + usize::try_from(word & HEADER_LENGTH_MASK).ok()?;
    if body_start > view.len() {
        return None;
    }
    let [encoding, ..] = word.to_be_bytes();
    Some((encoding, body_start))
}

/// A whole frame around a header and a body.
pub fn join<'py>(
    py: Python<'py>,
    encoding: u8,
    header: &[u8],
    body: View<'_>,
) -> Option<Bound<'py, PyBytes>> {
    let header_length = u32::try_from(header.len()).ok()?;
    if header_length > HEADER_LENGTH_MASK {
        return None;
    }
    let length = u32::try_from(header.len().checked_add(body.len())?.checked_add(4)?).ok()?;
    let headline = u32::from(encoding) << 24 | header_length;
    let size = 8 + header.len() + body.len();
    PyBytes::new_with(py, size, |frame| {
        let (head, rest) = frame.split_at_mut(8);
        let (header_target, body_target) = rest.split_at_mut(header.len());
        let words = [length.to_be_bytes(), headline.to_be_bytes()];
        head.copy_from_slice(words.as_flattened());
        header_target.copy_from_slice(header);
        body.copy_to(body_target);
        Ok(())
    })
    .ok()
}
