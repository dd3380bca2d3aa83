//! Bytes of Python objects, read in place.
//!
//! `bytes` never change and are lent as a slice. Other buffers (bytearray, memoryview, mmap) can be
//! written to by whoever else holds them, so Rust may not look at them as a slice; what is parsed
//! (a header, the fixed part of a record) is copied out first, and the rest is never touched.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ptr::copy_nonoverlapping;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

#[derive(Clone, Copy)]
pub enum View<'a> {
    Bytes(&'a [u8]),
    Shared(SharedMemory<'a>),
}

/// Memory of a buffer that others may write to: an address and a length, never a slice.
#[derive(Clone, Copy)]
pub struct SharedMemory<'a> {
    first: *const u8,
    len: usize,
    buffer: PhantomData<&'a PyBuffer<u8>>,
}

/// Does the work on the bytes of `object`; declines what is not one contiguous run of bytes.
pub fn with_view<T>(
    object: &Bound<'_, PyAny>,
    work: impl FnOnce(View<'_>) -> Option<T>,
) -> Option<T> {
    if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        return work(View::Bytes(bytes.as_bytes()));
    }
    let buffer = PyBuffer::<u8>::get(object).ok()?;
    if buffer.dimensions() != 1 || !buffer.is_c_contiguous() {
        return None;
    }
    match buffer.as_slice_ptr() {
        Some(memory) => work(View::Shared(SharedMemory {
            first: memory.as_ptr().cast_const().cast(),
            len: memory.len(),
            buffer: PhantomData,
        })),
        // Empty buffers may have no address at all.
        None => work(View::Bytes(&[])),
    }
}

impl<'a> View<'a> {
    pub fn len(self) -> usize {
        match self {
            View::Bytes(bytes) => bytes.len(),
            View::Shared(memory) => memory.len,
        }
    }

    pub fn part(self, start: usize, stop: usize) -> Option<View<'a>> {
        Some(match self {
            View::Bytes(bytes) => View::Bytes(bytes.get(start..stop)?),
            View::Shared(memory) => View::Shared(memory.part(start, stop)?),
        })
    }

    /// The first N bytes from `at` on.
    pub fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        let mut array = [0; N];
        self.part(at, at.checked_add(N)?)?.copy_to(&mut array);
        Some(array)
    }

    /// Fills `target` from the beginning of the view, as far as both reach.
    pub fn copy_to(self, target: &mut [u8]) {
        match self {
            View::Bytes(bytes) => {
                let count = bytes.len().min(target.len());
                if let (Some(to), Some(from)) = (target.get_mut(..count), bytes.get(..count)) {
                    to.copy_from_slice(from);
                }
            }
            View::Shared(memory) => memory.copy_to(target),
        }
    }

    pub fn bytes(self) -> Cow<'a, [u8]> {
        match self {
            View::Bytes(bytes) => Cow::Borrowed(bytes),
            View::Shared(memory) => {
                let mut copy = vec![0; memory.len];
                memory.copy_to(&mut copy);
                Cow::Owned(copy)
            }
        }
    }

    pub fn to_python<'py>(self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        match self {
            View::Bytes(bytes) => Some(PyBytes::new(py, bytes)),
            View::Shared(memory) => PyBytes::new_with(py, memory.len, |target| {
                memory.copy_to(target);
                Ok(())
            })
            .ok(),
        }
    }
}

/// Writable memory of a Python object (a mapped file), held for as long as this lives.
pub struct Mapping(PyBuffer<u8>);

impl Mapping {
    /// Declines what is read-only or not one contiguous run of bytes.
    pub fn of(object: &Bound<'_, PyAny>) -> Option<Self> {
        let buffer = PyBuffer::<u8>::get(object).ok()?;
        let plain = buffer.dimensions() == 1 && buffer.is_c_contiguous() && !buffer.readonly();
        (plain && buffer.item_count() > 0).then_some(Self(buffer))
    }

    pub fn len(&self) -> usize {
        self.0.item_count()
    }

    pub fn view(&self) -> View<'_> {
        View::Shared(SharedMemory {
            first: self.0.buf_ptr().cast_const().cast(),
            len: self.len(),
            buffer: PhantomData,
        })
    }

    /// Copies bytes to a place; declines, and does nothing, if they do not fit there.
    #[expect(unsafe_code, reason = "the one place that writes memory which Rust does not own")]
    pub fn write(&self, at: usize, bytes: &[u8]) -> Option<()> {
        let stop = at.checked_add(bytes.len())?;
        if stop > self.len() {
            return None;
        }
        let first: *mut u8 = self.0.buf_ptr().cast();
        // SAFETY: the PyBuffer is ours and writable, so its memory stays where it is, and the
        // range was just checked to lie inside. `bytes` are memory of Rust or of `bytes` objects,
        // which no mapped file is. Readers of the mapping never take it for a slice.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), first.wrapping_add(at), bytes.len()) }
        Some(())
    }
}

impl SharedMemory<'_> {
    fn part(self, start: usize, stop: usize) -> Option<Self> {
        let within = start <= stop && stop <= self.len;
        within.then(|| Self { first: self.first.wrapping_add(start), len: stop - start, ..self })
    }

    #[expect(unsafe_code, reason = "the one place that reads memory which Rust does not own")]
    fn copy_to(self, target: &mut [u8]) {
        let count = self.len.min(target.len());
        // SAFETY: `with_view` keeps the PyBuffer for as long as any view of it, and an object with
        // an exported buffer neither frees nor moves it. `part` keeps address and length inside the
        // buffer. `target` is memory of ours, so the two cannot overlap. Should someone write there
        // meanwhile, the copy holds a mixture of old and new bytes, and any bytes will do.
        unsafe { copy_nonoverlapping(self.first, target.as_mut_ptr(), count) }
    }
}
