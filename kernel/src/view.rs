//! Bytes of Python objects, read in place.
//!
//! `bytes` never change and are borrowed as a slice. Other buffers (bytearray, memoryview, mmap) may
//! be written by other code at any time, so Rust must not have a slice of them: what is parsed (a
//! header, the head of a record) is copied first, and the rest is not read.

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

/// Memory of a buffer that other code may write: an address and a length, never a slice.
#[derive(Clone, Copy)]
pub struct SharedMemory<'a> {
    first: *const u8,
    len: usize,
    buffer: PhantomData<&'a PyBuffer<u8>>,
}

/// Runs `work` on the bytes of `object`; None if the buffer is not contiguous.
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
        // Empty buffers may have no address.
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

    /// Copies from the start of the view to `target`, up to the shorter length.
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

impl View<'_> {
    /// Whether all pages are in memory, so that reading does not wait for the disk.
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "the only call of mincore")]
    pub fn is_cached(self) -> bool {
        let View::Shared(memory) = self else {
            return true;
        };
        // SAFETY: reads a constant of the system.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0);
        let Some(before) = memory.first.addr().checked_rem(page) else {
            return true;
        };
        let len = memory.len + before;
        let mut found = vec![0; len.div_ceil(page)];
        let first = memory.first.wrapping_sub(before).cast_mut().cast();
        // SAFETY: the view keeps the buffer alive. mincore neither reads nor writes its pages, and
        // `found` has one byte for each of them.
        let asked = unsafe { libc::mincore(first, len, found.as_mut_ptr()) };
        asked != 0 || found.iter().all(|state| state & 1 != 0)
    }

    #[cfg(not(target_os = "linux"))]
    pub fn is_cached(self) -> bool {
        true
    }
}

/// The most elements of one writev (IOV_MAX).
#[cfg(unix)]
const PARTS_MAX: usize = 1024;

/// Writes parts to a non-blocking socket; returns how many bytes it accepted. An error counts as 0
/// bytes: the next write to the socket reports it.
#[cfg(unix)]
#[expect(unsafe_code, reason = "the only call of writev")]
pub fn write_parts(socket: i32, parts: &[View<'_>]) -> usize {
    let slices: Vec<libc::iovec> = parts
        .iter()
        .take(PARTS_MAX)
        .map(|part| {
            let (first, len) = match part {
                View::Bytes(bytes) => (bytes.as_ptr(), bytes.len()),
                View::Shared(memory) => (memory.first, memory.len),
            };
            libc::iovec { iov_base: first.cast_mut().cast(), iov_len: len }
        })
        .collect();
    let Ok(count) = i32::try_from(slices.len()) else {
        return 0;
    };
    // SAFETY: the slices live until the call returns, and each is an address and a length inside a
    // buffer that its view keeps alive. The system only reads them; if other code writes there at the
    // same time, the system's copy is a mixture of old and new bytes.
    let written = unsafe { libc::writev(socket, slices.as_ptr(), count) };
    usize::try_from(written).unwrap_or(0)
}

#[cfg(not(unix))]
pub fn write_parts(_socket: i32, _parts: &[View<'_>]) -> usize {
    0
}

/// Writable memory of a Python object (a mapped file), kept alive by this value.
pub struct Mapping(PyBuffer<u8>);

impl Mapping {
    /// None if the buffer is read-only or not contiguous.
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

    /// Copies bytes to a position; None, without a change, if they do not fit.
    #[expect(unsafe_code, reason = "the only write to memory that Rust does not own")]
    pub fn write(&self, at: usize, bytes: &[u8]) -> Option<()> {
        let stop = at.checked_add(bytes.len())?;
        if stop > self.len() {
            return None;
        }
        let first: *mut u8 = self.0.buf_ptr().cast();
        // SAFETY: this value owns the writable PyBuffer, so its memory does not move, and the range
        // was just checked. `bytes` are memory of Rust or of `bytes` objects, so they cannot overlap
        // a mapped file. Readers of the mapping never have a slice of it.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), first.wrapping_add(at), bytes.len()) }
        Some(())
    }
}

impl SharedMemory<'_> {
    fn part(self, start: usize, stop: usize) -> Option<Self> {
        let within = start <= stop && stop <= self.len;
        within.then(|| Self { first: self.first.wrapping_add(start), len: stop - start, ..self })
    }

    #[expect(unsafe_code, reason = "the only read of memory that Rust does not own")]
    fn copy_to(self, target: &mut [u8]) {
        let count = self.len.min(target.len());
        // SAFETY: `with_view` keeps the PyBuffer as long as any view of it, and an object with an
        // exported buffer neither frees nor moves it. `part` keeps address and length inside the
        // buffer. `target` is memory of Rust, so the two cannot overlap. If other code writes there
        // at the same time, the copy is a mixture of old and new bytes, which callers validate.
        unsafe { copy_nonoverlapping(self.first, target.as_mut_ptr(), count) }
    }
}

/// A copy of a range of a shared buffer, for parsing.
#[derive(Default)]
pub struct Window {
    bytes: Vec<u8>,
    first: usize,
    len: usize,
}

/// Bytes copied at a time; small, so that little is wasted when a declined frame ends the loop.
const WINDOW_BYTES: usize = 64 * 1024;
/// A larger allocation is freed after the call.
const WINDOW_RETAINED_BYTES: usize = 1024 * 1024;

impl Window {
    /// Empties the window, since the buffer changes after a call.
    pub fn clear(&mut self) {
        self.len = 0;
        if self.bytes.len() > WINDOW_RETAINED_BYTES {
            self.bytes = Vec::new();
        }
    }

    /// A range of the view as a slice.
    pub fn part<'w>(&'w mut self, view: View<'w>, start: usize, stop: usize) -> Option<&'w [u8]> {
        if let View::Bytes(bytes) = view {
            return bytes.get(start..stop);
        }
        if start < self.first || stop > self.first + self.len {
            let end = view.len().min(stop.max(start.checked_add(WINDOW_BYTES)?));
            let part = view.part(start, end)?;
            (self.first, self.len) = (start, part.len());
            if self.bytes.len() < self.len {
                self.bytes.resize(self.len, 0);
            }
            part.copy_to(&mut self.bytes);
        }
        self.bytes.get(..self.len)?.get(start - self.first..stop - self.first)
    }
}
