//! The compiled kernel of Tianzhou.
//!
//! Whole buffers in, plain Python values out, by the contract of `protocol/pure/frames.py` and
//! `protocol/pure/record.py`. A function declines unusual and damaged input by returning None; the
//! pure-Python version handles it, so all error texts are written there.

mod codecs;
mod feed;
mod guard;
mod reader;
mod spark;
mod view;

use pyo3::prelude::*;

/// Incremented with every change of the contract, here and in `protocol/kernel.py`.
const CONTRACT: u32 = 8;

#[pymodule]
mod tianzhou_kernel {
    use pyo3::prelude::*;
    use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

    use crate::codecs::header::{Command, ENCODING_BINARY, ENCODING_JSON};
    use crate::codecs::records::{Neighbour, Record};
    use crate::codecs::walk::{self, Task};
    use crate::codecs::{crc, frames, header_binary, header_json, index_item, records};
    #[pymodule_export]
    use crate::feed::Feed;
    use crate::guard::guarded;
    use crate::view::{Mapping, with_view};

    type Object<'a, 'py> = &'a Bound<'py, PyAny>;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("CONTRACT", crate::CONTRACT)
    }

    #[pyfunction]
    #[pyo3(signature = (buffer, limit_bytes, /))]
    fn split_frames<'py>(
        buffer: Object<'_, 'py>,
        limit_bytes: Object<'_, 'py>,
    ) -> PyResult<Option<(Bound<'py, PyList>, usize)>> {
        guarded(|| {
            let limit = limit_bytes.extract().ok()?;
            with_view(buffer, |view| frames::split(buffer.py(), view, limit))
        })
    }

    #[pyfunction]
    #[pyo3(signature = (frame, /))]
    fn decode_header<'py>(frame: Object<'_, 'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let py = frame.py();
        guarded(|| {
            with_view(frame, |view| {
                let (encoding, body_start) = frames::headline(view)?;
                let bytes = view.part(8, body_start)?.bytes();
                let header = match encoding {
                    ENCODING_JSON => header_json::decode(py, &bytes)?,
                    ENCODING_BINARY => header_binary::decode(py, &bytes)?,
                    _ => return None,
                };
                let fields = (
                    header.head.code,
                    header.language,
                    header.version,
                    header.head.opaque,
                    header.head.flag,
                    header.remark,
                    header.ext_fields,
                    encoding,
                    body_start,
                );
                fields.into_pyobject(py).ok()
            })
        })
    }

    #[pyfunction]
    #[pyo3(signature = (code, language, version, opaque, flag, remark, ext_fields, encoding, body, /))]
    #[expect(clippy::too_many_arguments, reason = "the fields of a header, flat for speed")]
    fn encode_frame<'py>(
        code: Object<'_, 'py>,
        language: Object<'_, 'py>,
        version: Object<'_, 'py>,
        opaque: Object<'_, 'py>,
        flag: Object<'_, 'py>,
        remark: Object<'_, 'py>,
        ext_fields: Object<'_, 'py>,
        encoding: Object<'_, 'py>,
        body: Object<'_, 'py>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        guarded(|| {
            let pairs = match optional::<PyDict>(ext_fields)? {
                Some(map) => Some(exact_pairs(map)?),
                None => None,
            };
            let command = Command {
                code: code.extract().ok()?,
                language: language.extract().ok()?,
                version: version.extract().ok()?,
                opaque: opaque.extract().ok()?,
                flag: flag.extract().ok()?,
                remark: match optional::<PyString>(remark)? {
                    Some(text) => Some(text.to_str().ok()?),
                    None => None,
                },
                ext_fields: match &pairs {
                    Some(pairs) => Some(texts(pairs)?),
                    None => None,
                },
            };
            let wanted: i64 = encoding.extract().ok()?;
            // Codes beyond 16 bits do not fit a binary header; every peer reads JSON.
            let binary =
                wanted == i64::from(ENCODING_BINARY) && i16::try_from(command.code).is_ok();
            let (written, header) = if binary {
                (ENCODING_BINARY, header_binary::encode(&command)?)
            } else {
                (ENCODING_JSON, header_json::encode(&command)?)
            };
            with_view(body, |view| frames::join(body.py(), written, &header, view))
        })
    }

    #[pyfunction]
    #[pyo3(signature = (buffer, start, check_crc, read_body, /))]
    fn decode_record<'py>(
        buffer: Object<'_, 'py>,
        start: Object<'_, 'py>,
        check_crc: bool,
        read_body: bool,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let py = buffer.py();
        guarded(|| {
            let start = start.extract().ok()?;
            with_view(buffer, |view| {
                let mut neighbour = Neighbour::default();
                let found = records::decode(py, view, start, check_crc, read_body, &mut neighbour);
                found.map(|(fields, _)| fields)
            })
        })
    }

    #[pyfunction]
    #[pyo3(signature = (buffer, check_crc, read_body, /))]
    fn decode_records<'py>(
        buffer: Object<'_, 'py>,
        check_crc: bool,
        read_body: bool,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let py = buffer.py();
        guarded(|| with_view(buffer, |view| records::decode_all(py, view, check_crc, read_body)))
    }

    #[pyfunction]
    #[pyo3(signature = (buffer, starts, names, check_crc, /))]
    fn decode_columns<'py>(
        buffer: Object<'_, 'py>,
        starts: Object<'_, 'py>,
        names: Object<'_, 'py>,
        check_crc: bool,
    ) -> PyResult<Option<(usize, Bound<'py, PyList>)>> {
        guarded(|| {
            let names: Vec<String> = names.extract().ok()?;
            let starts = optional::<PyBytes>(starts)?.map(|starts| starts.as_bytes());
            with_view(buffer, |view| {
                crate::spark::decode_columns::decode(buffer.py(), view, starts, &names, check_crc)
            })
        })
    }

    #[pyfunction]
    #[pyo3(signature = (parts, numbers, ids, /))]
    fn encode_rows<'py>(
        parts: Object<'_, 'py>,
        numbers: Object<'_, 'py>,
        ids: Object<'_, 'py>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        guarded(|| {
            let numbers = numbers.cast_exact::<PyBytes>().ok()?.as_bytes();
            let ids = ids.cast_exact::<PyBytes>().ok()?.as_bytes();
            crate::spark::encode_rows::encode(parts.cast_exact::<PyTuple>().ok()?, numbers, ids)
        })
    }

    #[pyfunction]
    #[pyo3(signature = (
        topic, body, properties_text, queue_id, queue_offset, log_offset, flag, sys_flag,
        born_time_ms, born_host, store_time_ms, store_host, reconsume_count, prepared_log_offset, /,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the fields of a record, flat for speed")]
    fn encode_record<'py>(
        topic: Object<'_, 'py>,
        body: Object<'_, 'py>,
        properties_text: Object<'_, 'py>,
        queue_id: Object<'_, 'py>,
        queue_offset: Object<'_, 'py>,
        log_offset: Object<'_, 'py>,
        flag: Object<'_, 'py>,
        sys_flag: Object<'_, 'py>,
        born_time_ms: Object<'_, 'py>,
        born_host: Object<'_, 'py>,
        store_time_ms: Object<'_, 'py>,
        store_host: Object<'_, 'py>,
        reconsume_count: Object<'_, 'py>,
        prepared_log_offset: Object<'_, 'py>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        guarded(|| {
            let record = Record {
                topic: topic.cast_exact::<PyString>().ok()?.to_str().ok()?,
                properties: properties_text
                    .cast_exact::<PyString>()
                    .ok()?
                    .to_str()
                    .ok()?
                    .as_bytes(),
                queue_id: queue_id.extract().ok()?,
                queue_offset: queue_offset.extract().ok()?,
                log_offset: log_offset.extract().ok()?,
                flag: flag.extract().ok()?,
                sys_flag: sys_flag.extract().ok()?,
                born_time: born_time_ms.extract().ok()?,
                born_host: born_host.cast_exact::<PyBytes>().ok()?.as_bytes(),
                store_time: store_time_ms.extract().ok()?,
                store_host: store_host.cast_exact::<PyBytes>().ok()?.as_bytes(),
                reconsume_count: reconsume_count.extract().ok()?,
                prepared_log_offset: prepared_log_offset.extract().ok()?,
            };
            with_view(body, |view| records::encode(body.py(), &record, view))
        })
    }

    #[pyfunction]
    #[pyo3(signature = (
        buffer, first, start, stop, queues_from, index_from, keys_max, delay_levels_ms, check_crc,
        torn, /,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the bounds of a walk, as in pure Python")]
    fn walk_records<'py>(
        buffer: Object<'_, 'py>,
        first: Object<'_, 'py>,
        start: Object<'_, 'py>,
        stop: Object<'_, 'py>,
        queues_from: Object<'_, 'py>,
        index_from: Object<'_, 'py>,
        keys_max: Object<'_, 'py>,
        delay_levels_ms: Object<'_, 'py>,
        check_crc: bool,
        torn: bool,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        guarded(|| {
            let task = Task {
                first: first.extract().ok()?,
                start: start.extract().ok()?,
                stop: stop.extract().ok()?,
                queues_from: queues_from.extract().ok()?,
                index_from: index_from.extract().ok()?,
                keys_max: keys_max.extract().ok()?,
                delay_levels: delay_levels_ms.extract().ok()?,
                check_crc,
                torn,
            };
            with_view(buffer, |view| walk::walk(buffer.py(), view, &task))
        })
    }

    #[pyfunction]
    #[pyo3(signature = (file, slot_count, number, begin_time_ms, items, /))]
    fn put_index_items(
        file: Object<'_, '_>,
        slot_count: Object<'_, '_>,
        number: Object<'_, '_>,
        begin_time_ms: Object<'_, '_>,
        items: Object<'_, '_>,
    ) -> PyResult<Option<u32>> {
        guarded(|| {
            let slots = slot_count.extract().ok()?;
            let (number, begin_time) = (number.extract().ok()?, begin_time_ms.extract().ok()?);
            let items = items.cast_exact::<PyBytes>().ok()?.as_bytes();
            index_item::put_items(&Mapping::of(file)?, slots, number, begin_time, items)
        })
    }

    /// CRC-32 without its top bit.
    #[pyfunction]
    #[pyo3(signature = (buffer, /))]
    fn body_crc(buffer: Object<'_, '_>) -> PyResult<Option<u32>> {
        guarded(|| with_view(buffer, |view| Some(crc::body_crc(view))))
    }

    /// Panics, for the test of `guarded`.
    #[pyfunction]
    #[expect(clippy::panic, reason = "its purpose")]
    fn provoke_panic() -> PyResult<Option<()>> {
        guarded(|| panic!("as asked"))
    }

    /// None, or exactly the expected type; anything else is declined.
    fn optional<'a, 'py, T>(object: Object<'a, 'py>) -> Option<Option<&'a Bound<'py, T>>>
    where
        T: pyo3::PyTypeInfo,
    {
        if object.is_none() {
            return Some(None);
        }
        object.cast_exact().ok().map(Some)
    }

    type Pair<'py> = (Bound<'py, PyString>, Bound<'py, PyString>);

    /// The items of a map from str to str; subclasses of str are declined, which may have another `str()`.
    fn exact_pairs<'py>(map: &Bound<'py, PyDict>) -> Option<Vec<Pair<'py>>> {
        map.iter()
            .map(|(key, value)| Some((key.cast_into_exact().ok()?, value.cast_into_exact().ok()?)))
            .collect()
    }

    fn texts<'a>(pairs: &'a [Pair<'_>]) -> Option<Vec<(&'a str, &'a str)>> {
        pairs.iter().map(|(key, value)| Some((key.to_str().ok()?, value.to_str().ok()?))).collect()
    }
}
