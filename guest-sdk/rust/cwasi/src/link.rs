//! Runtime of `#[cwasi::export]` and `cwasi::import!`. Only the macros use this module, except
//! [`library!`](crate::library).

use std::cell::RefCell;
use std::fmt::Display;

use crate::imports;

/// Status of a linked call that ended with a result.
const RETURNED: i32 = 0;
/// Status of a linked call that ended with an error, whose text is the result.
const FAILED: i32 = 1;
/// Status outside a guest.
pub const UNLINKED: i32 = -1;

/// Makes a module without a handler a library. Use it once, beside the exported functions.
#[macro_export]
macro_rules! library {
    () => {
        const _: () = {
            #[allow(unsafe_code)]
            #[unsafe(export_name = "_initialize")]
            extern "C" fn __cwasi_initialize() {
                ::cwasi::export::initialize()
            }
        };
    };
}

thread_local! {
    /// The last result, kept until the next call.
    static RESULT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs an exported function; returns the status for its caller.
pub fn serve<R: IntoResult>(run: impl FnOnce() -> Result<R, String>) -> i32 {
    let (status, bytes) = match run().and_then(IntoResult::into_result) {
        Ok(bytes) => (RETURNED, bytes),
        Err(message) => (FAILED, message.into_bytes()),
    };
    RESULT.with_borrow_mut(|result| {
        *result = bytes;
        // Outside a linked call there is no caller.
        let _nobody = imports::link_return(result);
    });
    status
}

/// Reads an argument.
///
/// # Errors
/// When it does not fit into this module's memory.
pub fn argument(index: u32) -> Result<Vec<u8>, String> {
    imports::link_read(index).map_err(|errno| format!("argument {index} cannot be read: {errno}"))
}

/// An argument as the function's type.
///
/// # Errors
/// When the bytes are not valid for it.
pub fn view<T: Buffer + ?Sized>(bytes: &[u8]) -> Result<&T, String> {
    T::view(bytes)
}

/// Passes a buffer to the call that follows.
pub fn offer(bytes: &[u8]) {
    let errno = imports::link_offer(bytes);
    // Without a host, the call that follows says so.
    assert!(
        matches!(errno, crate::ErrorKind::Ok | crate::ErrorKind::NotAvailable),
        "too many buffers for one call of an embedded function"
    );
}

/// The result of a call with this `status`.
pub fn result<R: FromResult>(function: &str, status: i32) -> R {
    let text = |errno| format!("the result of {function} cannot be read: {errno}");
    R::from_result(match status {
        RETURNED => imports::link_result().map_err(text),
        UNLINKED => Err(format!("{function} is not linked: there is no host here")),
        _ => Err(imports::link_result()
            .map_or_else(text, |bytes| String::from_utf8_lossy(&bytes).into_owned())),
    })
}

/// Fails to compile for a type that is not a number.
pub const fn number<T: Number>() {}

/// Types that are passed as they are.
pub trait Number {}

/// Types that are copied between the memories.
pub trait Buffer {
    /// The bytes as this type.
    ///
    /// # Errors
    /// When they are not valid for it.
    fn view(bytes: &[u8]) -> Result<&Self, String>;
}

impl Buffer for [u8] {
    fn view(bytes: &[u8]) -> Result<&Self, String> {
        Ok(bytes)
    }
}

impl Buffer for str {
    fn view(bytes: &[u8]) -> Result<&Self, String> {
        str::from_utf8(bytes).map_err(|error| format!("an argument is no text: {error}"))
    }
}

/// Types that an exported function can return.
pub trait IntoResult {
    /// The bytes to send.
    ///
    /// # Errors
    /// The message that the caller gets.
    fn into_result(self) -> Result<Vec<u8>, String>;
}

/// Types that an imported function can return.
pub trait FromResult {
    /// Converts received bytes, or the message of an error.
    fn from_result(result: Result<Vec<u8>, String>) -> Self;
}

impl<T: IntoResult, E: Display> IntoResult for Result<T, E> {
    fn into_result(self) -> Result<Vec<u8>, String> {
        self.map_err(|error| error.to_string()).and_then(IntoResult::into_result)
    }
}

/// A result that cannot be an error.
trait Plain: Sized {
    fn from_bytes(bytes: Vec<u8>) -> Option<Self>;
}

impl<T: Plain> FromResult for Result<T, String> {
    fn from_result(result: Result<Vec<u8>, String>) -> Self {
        result.and_then(|bytes| T::from_bytes(bytes).ok_or_else(|| OTHER_TYPE.to_owned()))
    }
}

/// The caller's error when library and import disagree about the result.
const OTHER_TYPE: &str = "the library returns another type than its import says";

macro_rules! plain {
    ($($ty:ty: |$value:ident| $into:expr, |$bytes:ident| $from:expr;)*) => {$(
        impl IntoResult for $ty {
            fn into_result(self) -> Result<Vec<u8>, String> {
                let $value = self;
                Ok($into)
            }
        }

        impl Plain for $ty {
            fn from_bytes($bytes: Vec<u8>) -> Option<Self> {
                $from
            }
        }

        impl FromResult for $ty {
            fn from_result(result: Result<Vec<u8>, String>) -> Self {
                match Result::<$ty, String>::from_result(result) {
                    Ok(value) => value,
                    Err(message) => panic!("{message}"),
                }
            }
        }
    )*};
}

macro_rules! numbers {
    ($($ty:ty)*) => {
        $(impl Number for $ty {})*
        plain! {$(
            $ty: |value| value.to_le_bytes().to_vec(),
                |bytes| Some(<$ty>::from_le_bytes(bytes.try_into().ok()?));
        )*}
    };
}

numbers! { i32 u32 i64 u64 f32 f64 }

plain! {
    Vec<u8>: |value| value, |bytes| Some(bytes);
    String: |value| value.into_bytes(), |bytes| String::from_utf8(bytes).ok();
    (): |_nothing| Vec::new(), |bytes| bytes.is_empty().then_some(());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn travels<T: IntoResult, R: FromResult>(value: T) -> R {
        R::from_result(value.into_result())
    }

    #[test]
    fn every_result_travels() {
        assert_eq!(travels::<_, u32>(7_u32), 7);
        assert_eq!(travels::<_, f64>(0.5_f64), 0.5);
        assert_eq!(travels::<_, String>("ä".to_owned()), "ä");
        assert_eq!(travels::<_, Vec<u8>>(vec![1, 2]), [1, 2]);
        travels::<_, ()>(());
        assert_eq!(travels::<_, Result<i64, String>>(-3_i64), Ok(-3));
        let failed: Result<u32, std::fmt::Error> = Err(std::fmt::Error);
        assert!(travels::<_, Result<u32, String>>(failed).is_err());
        assert_eq!(travels::<_, Result<u32, String>>(7_u64), Err(OTHER_TYPE.into()));
    }

    #[test]
    fn arguments_are_checked() {
        assert_eq!(view::<str>(b"ok"), Ok("ok"));
        assert!(view::<str>(b"\xff").is_err());
        assert_eq!(view::<[u8]>(b"\xff"), Ok(&b"\xff"[..]));
    }

    mod library {
        crate::import! {
            mod geo {
                /// Length of a way.
                pub fn length(way: &[u8], name: &str, scale: f64) -> Result<f64, String>;
                fn reset();
            }
        }

        #[test]
        fn nothing_is_linked_without_a_host() {
            let error = geo::length(b"", "x", 1.0).expect_err("there is no host here");
            assert_eq!(error, "geo.length is not linked: there is no host here");
            assert!(std::panic::catch_unwind(geo::reset).is_err());
        }
    }
}
