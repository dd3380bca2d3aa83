//! Turns panics into RuntimeError.
//!
//! PyO3 alone raises PanicException, a BaseException that `except Exception` does not catch.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;

/// Runs the work of one function. A panic leaves no partial state: the work owns what it builds and
/// does not change what it reads.
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
