//! A panic becomes a Python exception that `except Exception` sees, and never ends the process.
//!
//! PyO3 alone would raise PanicException, a BaseException that flies past every handler of ours.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;

/// Runs the work of one entry. Nothing half-done can be seen after a panic: the work owns what it
/// builds, and what it reads it does not change.
pub fn guarded<T>(work: impl FnOnce() -> Option<T>) -> PyResult<Option<T>> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|cause| {
        PyRuntimeError::new_err(format!("the kernel panicked: {}", text_of(cause.as_ref())))
    })
}

fn text_of(cause: &(dyn Any + Send)) -> &str {
    if let Some(text) = cause.downcast_ref::<&str>() {
        return text;
    }
    match cause.downcast_ref::<String>() {
        Some(text) => text,
        None => "no reason given",
    }
}
