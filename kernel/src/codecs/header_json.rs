//! The JSON header encoding: one flat object with one object of strings in it.
//!
//! The scanner reads the subset of JSON that every known client writes and declines the rest (nested
//! unknown values, numbers in place of strings, fractions), which the pure-Python parser reads. The
//! writer gives exactly the bytes that msgspec gives there.

use std::borrow::Cow;
use std::io::Write;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::header::{Command, Head, Header, LANGUAGE_OTHER, LANGUAGES, PythonHeader};
use super::text::is_utf8;

// -- reading --------------------------------------------------------------------------------------

pub fn decode<'py>(py: Python<'py>, header: &[u8]) -> Option<PythonHeader<'py>> {
    read(header, |text| python_text(py, text), |scanner, _| scanner.ext_fields(py))
}

/// Reads a header without Python objects: `field` gets the code and each ext field, all UTF-8.
/// Declines a header whose code does not come before the ext fields.
pub fn scan<'a>(
    header: &'a [u8],
    mut field: impl FnMut(i32, &[u8], Cow<'a, [u8]>) -> Option<()>,
) -> Option<Head> {
    // Checked once: strings are UTF-8 if the whole header is, and escapes are.
    valid(header)?;
    let parts = read(
        header,
        |_| Some(()),
        |scanner, code| {
            let code = code?;
            scanner.strings(|key, value| field(code, key, value)).map(Some)
        },
    )?;
    Some(parts.head)
}

/// The object of a header; the caller says how to read remark and ext fields.
#[inline]
fn read<'a, R, E>(
    header: &'a [u8],
    make_remark: impl Fn(&[u8]) -> Option<R>,
    mut read_fields: impl FnMut(&mut Scanner<'a>, Option<i32>) -> Option<Option<E>>,
) -> Option<Header<R, E>> {
    let mut scanner = Scanner(header);
    let (mut code, mut flag, mut opaque, mut version) = (None, None, None, None);
    let (mut language, mut remark, mut ext_fields) = (None, None, None);
    let mut encoding = None;
    scanner.object(|scanner, key| {
        // A repeated field is declined, whatever the two values are.
        match key {
            b"code" => once(&mut code, scanner.int32()?),
            b"flag" => once(&mut flag, scanner.int32()?),
            b"opaque" => once(&mut opaque, scanner.int32()?),
            b"version" => once(&mut version, scanner.int32()?),
            b"language" => once(&mut language, scanner.optional(language_number)?),
            b"remark" => once(&mut remark, scanner.optional(&make_remark)?),
            b"extFields" => once(&mut ext_fields, read_fields(scanner, code)?),
            b"serializeTypeCurrentRPC" => once(&mut encoding, scanner.optional(valid)?),
            _ => {
                valid(key)?;
                scanner.skip()
            }
        }
    })?;
    scanner.space();
    if !scanner.0.is_empty() {
        return None;
    }
    Some(Header {
        head: Head { code: code?, flag: flag.unwrap_or(0), opaque: opaque.unwrap_or(0) },
        language: language.flatten().unwrap_or(LANGUAGE_OTHER),
        version: version.unwrap_or(0),
        remark: remark.flatten(),
        ext_fields: ext_fields.flatten(),
    })
}

fn once<T>(slot: &mut Option<T>, value: T) -> Option<()> {
    match slot.replace(value) {
        None => Some(()),
        Some(_) => None,
    }
}

fn valid(text: &[u8]) -> Option<()> {
    is_utf8(text).then_some(())
}

/// Declines what is not UTF-8; Python checks it on its way.
fn python_text<'py>(py: Python<'py>, text: &[u8]) -> Option<Bound<'py, PyString>> {
    PyString::from_bytes(py, text).ok()
}

fn language_number(name: &[u8]) -> Option<u8> {
    match LANGUAGES.iter().position(|known| known.as_bytes() == name) {
        Some(number) => u8::try_from(number).ok(),
        None => valid(name).map(|()| LANGUAGE_OTHER),
    }
}

/// What is left to read of a header.
struct Scanner<'a>(&'a [u8]);

impl<'a> Scanner<'a> {
    fn space(&mut self) {
        while let [b' ' | b'\n' | b'\t' | b'\r', rest @ ..] = self.0 {
            self.0 = rest;
        }
    }

    #[inline]
    fn eat(&mut self, byte: u8) -> bool {
        match self.0 {
            [first, rest @ ..] if *first == byte => {
                self.0 = rest;
                true
            }
            _ => false,
        }
    }

    /// The byte, with space allowed before it.
    #[inline]
    fn expect(&mut self, byte: u8) -> Option<()> {
        if self.eat(byte) {
            return Some(());
        }
        self.space();
        self.eat(byte).then_some(())
    }

    fn word(&mut self, word: &[u8]) -> bool {
        match self.0.strip_prefix(word) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    /// An object; `member` gets each key and must take its value. Keys with escapes decline.
    #[inline]
    fn object(&mut self, mut member: impl FnMut(&mut Self, &[u8]) -> Option<()>) -> Option<()> {
        self.expect(b'{')?;
        if self.expect(b'}').is_some() {
            return Some(());
        }
        loop {
            let Cow::Borrowed(key) = self.string()? else {
                return None;
            };
            self.expect(b':')?;
            self.space();
            member(self, key)?;
            if self.expect(b',').is_none() {
                return self.expect(b'}');
            }
        }
    }

    /// An object of strings.
    #[inline]
    fn strings(
        &mut self,
        mut member: impl FnMut(&[u8], Cow<'a, [u8]>) -> Option<()>,
    ) -> Option<()> {
        self.expect(b'{')?;
        if self.expect(b'}').is_some() {
            return Some(());
        }
        loop {
            // Most keys have one letter, and no space is around them.
            if let [b'"', letter @ b'a'..=b'z', b'"', b':', b'"', rest @ ..] = self.0 {
                self.0 = rest;
                member(std::slice::from_ref(letter), self.string_rest()?)?;
            } else {
                let Cow::Borrowed(key) = self.string()? else {
                    return None;
                };
                self.expect(b':')?;
                self.space();
                member(key, self.string()?)?;
            }
            if self.expect(b',').is_none() {
                return self.expect(b'}');
            }
        }
    }

    fn ext_fields<'py>(&mut self, py: Python<'py>) -> Option<Option<Bound<'py, PyDict>>> {
        if self.word(b"null") {
            return Some(None);
        }
        let fields = PyDict::new(py);
        self.object(|scanner, key| {
            let value = scanner.string()?;
            fields.set_item(python_text(py, key)?, python_text(py, &value)?).ok()
        })?;
        Some(Some(fields))
    }

    /// A string or null.
    fn optional<T>(&mut self, make: impl FnOnce(&[u8]) -> Option<T>) -> Option<Option<T>> {
        if self.word(b"null") {
            return Some(None);
        }
        let text = self.string()?;
        make(&text).map(Some)
    }

    fn skip(&mut self) -> Option<()> {
        match self.0.first()? {
            b'"' => valid(&self.string()?),
            b'-' | b'0'..=b'9' => self.integer().map(drop),
            _ => (self.word(b"null") || self.word(b"true") || self.word(b"false")).then_some(()),
        }
    }

    fn int32(&mut self) -> Option<i32> {
        i32::try_from(self.integer()?).ok()
    }

    /// An integer of up to 18 digits in canonical form: no "-0", "01", "1.0" or "1e3".
    #[inline]
    fn integer(&mut self) -> Option<i64> {
        let negative = self.eat(b'-');
        let whole = self.0;
        let mut number: i64 = 0;
        while let [digit @ b'0'..=b'9', rest @ ..] = self.0 {
            number = number.wrapping_mul(10).wrapping_add(i64::from(digit - b'0'));
            self.0 = rest;
        }
        let is_unusual = match whole.len() - self.0.len() {
            0 | 19.. => true,
            1 => negative && number == 0,
            _ => whole.first() == Some(&b'0'),
        };
        if is_unusual || matches!(self.0, [b'.' | b'e' | b'E', ..]) {
            return None;
        }
        Some(if negative { -number } else { number })
    }

    /// A string; borrowed from the header where nothing in it is escaped.
    #[inline]
    fn string(&mut self) -> Option<Cow<'a, [u8]>> {
        self.expect(b'"')?;
        self.string_rest()
    }

    /// A string whose opening quote is behind us.
    #[inline]
    fn string_rest(&mut self) -> Option<Cow<'a, [u8]>> {
        let (plain, rest) = self.0.split_at_checked(plain_length(self.0))?;
        if let [b'"', behind @ ..] = rest {
            self.0 = behind;
            return Some(Cow::Borrowed(plain));
        }
        self.0 = rest;
        self.escaped_string(plain).map(Cow::Owned)
    }

    /// The rest of a string that does not end after its first plain part.
    fn escaped_string(&mut self, first: &[u8]) -> Option<Vec<u8>> {
        // Space for the properties of most messages, the only field with many escapes.
        let mut text = Vec::with_capacity(first.len() + 128);
        text.extend_from_slice(first);
        loop {
            match self.0 {
                [b'"', rest @ ..] => {
                    self.0 = rest;
                    return Some(text);
                }
                // What separates properties.
                [b'\\', b'u', b'0', b'0', b'0', digit @ b'1'..=b'2', rest @ ..] => {
                    self.0 = rest;
                    text.push(digit - b'0');
                }
                [b'\\', rest @ ..] => {
                    self.0 = rest;
                    let character = self.escape()?;
                    text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                _ => return None,
            }
            let (plain, rest) = self.0.split_at_checked(plain_length(self.0))?;
            text.extend_from_slice(plain);
            self.0 = rest;
        }
    }

    /// The character that an escape means, the backslash being behind us.
    fn escape(&mut self) -> Option<char> {
        let (kind, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(match kind {
            b'"' | b'\\' | b'/' => char::from(*kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.escaped_unit(),
            _ => return None,
        })
    }

    /// \uXXXX, and the second half of a pair with it; halves alone decline.
    fn escaped_unit(&mut self) -> Option<char> {
        let unit = self.hex4()?;
        if !(0xD800..0xE000).contains(&unit) {
            return char::from_u32(unit);
        }
        if unit >= 0xDC00 || !self.word(b"\\u") {
            return None;
        }
        let low = self.hex4()?;
        if !(0xDC00..0xE000).contains(&low) {
            return None;
        }
        char::from_u32(0x1_0000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
    }

    fn hex4(&mut self) -> Option<u32> {
        let (digits, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        digits.iter().try_fold(0, |number, byte| Some(number << 4 | digit(byte)?))
    }
}

/// How many bytes from the front are neither quote, backslash nor control character.
#[inline]
fn plain_length(bytes: &[u8]) -> usize {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut rest = bytes;
    // Eight at a time. A borrow can only mark bytes above a true hit, and the lowest mark counts.
    while let Some((chunk, behind)) = rest.split_first_chunk() {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ (LOW * u64::from(b'"'));
        let backslash = word ^ (LOW * u64::from(b'\\'));
        let marks = (quote.wrapping_sub(LOW) & !quote)
            | (backslash.wrapping_sub(LOW) & !backslash)
            | (word.wrapping_sub(LOW * 0x20) & !word);
        let marks = marks & HIGH;
        if marks != 0 {
            let hit = usize::try_from(marks.trailing_zeros() / 8).unwrap_or(0);
            return bytes.len() - rest.len() + hit;
        }
        rest = behind;
    }
    bytes.len() - rest.len() + rest.iter().take_while(|byte| is_plain(**byte)).count()
}

fn is_plain(byte: u8) -> bool {
    byte >= 0x20 && byte != b'"' && byte != b'\\'
}

/// A whole number as text in its only usual form; anything else declines.
pub fn number(text: &[u8]) -> Option<i64> {
    let mut scanner = Scanner(text);
    let number = scanner.integer()?;
    scanner.0.is_empty().then_some(number)
}

// -- writing --------------------------------------------------------------------------------------

pub fn encode(command: &Command<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(512);
    write!(out, "{{\"code\":{}", command.code).ok()?;
    if let Some(pairs) = &command.ext_fields {
        out.extend_from_slice(b",\"extFields\":{");
        for (number, (key, value)) in pairs.iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            put_string(&mut out, key);
            out.push(b':');
            put_string(&mut out, value);
        }
        out.push(b'}');
    }
    let known = usize::try_from(command.language).ok().and_then(|number| LANGUAGES.get(number));
    let language = known.unwrap_or(&"OTHER");
    write!(out, ",\"flag\":{},\"language\":\"{language}\"", command.flag).ok()?;
    write!(out, ",\"opaque\":{}", command.opaque).ok()?;
    if let Some(remark) = command.remark {
        out.extend_from_slice(b",\"remark\":");
        put_string(&mut out, remark);
    }
    out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\"");
    write!(out, ",\"version\":{}}}", command.version).ok()?;
    Some(out)
}

pub fn put_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some((plain, [special, behind @ ..])) = rest.split_at_checked(plain_length(rest)) {
        out.extend_from_slice(plain);
        put_escape(out, *special);
        rest = behind;
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

fn put_escape(out: &mut Vec<u8>, byte: u8) {
    const HEX: [u8; 16] = *b"0123456789abcdef";
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x09 => b't',
        0x0A => b'n',
        0x0C => b'f',
        0x0D => b'r',
        _ => {
            let digit = |half: u8| HEX.get(usize::from(half)).copied().unwrap_or(b'0');
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}
