//! Build script: puts ONNX Runtime's shared library within reach of `src/graphs/runtime.rs`.
//!
//! With the feature `bundled` (default) the library is embedded, compressed, and `cfg(ort_bundled)` is set. It is taken
//! from the first of these:
//!
//! 1. `HIGGS_TTS_ORT_LIB`: a shared library of your own, embedded as it is. (`ORT_DYLIB_PATH` is a matter of running:
//!    nobody who exports it for that wants another program built.)
//! 2. `HIGGS_TTS_ORT_WHEEL`: the wheel pinned in `build/onnxruntime.tsv`, downloaded beforehand.
//! 3. The cache of downloads: `HIGGS_TTS_BUILD_CACHE`, else `higgs-tts/build` in the user's cache folder.
//! 4. `pip download` of that wheel, unless `CARGO_NET_OFFLINE` is `true`. pip's own settings for index, proxy and
//!    certificates apply.
//!
//! A wheel is used only if its SHA-256 is the pinned one.

#![expect(clippy::print_stdout, reason = "cargo reads instructions from a build script's standard output")]

#[cfg(feature = "bundled")]
mod bundle;

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rustc-check-cfg=cfg(ort_bundled)");
    #[cfg(feature = "bundled")]
    {
        // docs.rs builds without a network; the documentation needs no library.
        println!("cargo::rerun-if-env-changed=DOCS_RS");
        if std::env::var_os("DOCS_RS").is_some() {
            return;
        }
        match bundle::embed() {
            Ok(()) => println!("cargo::rustc-cfg=ort_bundled"),
            Err(error) => error.to_string().lines().for_each(|line| println!("cargo::error={line}")),
        }
    }
}
