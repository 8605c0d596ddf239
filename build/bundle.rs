//! Finds ONNX Runtime and writes it to `OUT_DIR` for `src/graphs/runtime/bundled.rs`: raw deflate streams, and
//! `onnxruntime.rs` with what is known of them.

use std::{
    env,
    fmt::Write as _,
    fs,
    io::{self, Cursor, Read},
    path::{Path, PathBuf},
    process::{self, Command},
};

use sha2::{Digest, Sha256};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What is embedded.
struct Bundle {
    file_name: String,
    library: Packed,
    /// Title and text.
    notices: Vec<(&'static str, Packed)>,
}

/// A raw deflate stream and what comes out of it.
struct Packed {
    stream: Vec<u8>,
    length: usize,
    sha256: String,
}

/// A row of `onnxruntime.tsv`: the official wheel for the platform that is built for.
struct Pin {
    version: &'static str,
    platform: &'static str,
    sha256: &'static str,
    library: &'static str,
}

pub(crate) fn embed() -> Result<()> {
    let bundle = match input("HIGGS_TTS_ORT_LIB") {
        Some(file) => from_library(&file)?,
        None => {
            let pin = pin()?;
            from_wheel(&pin, &wheel(&pin)?)?
        }
    };
    write(&bundle, Path::new(&env::var("OUT_DIR")?))
}

/// A file named by the environment; both the name and the file are inputs of the build.
fn input(variable: &str) -> Option<PathBuf> {
    println!("cargo::rerun-if-env-changed={variable}");
    let file = PathBuf::from(env::var_os(variable).filter(|value| !value.is_empty())?);
    println!("cargo::rerun-if-changed={}", file.display());
    Some(file)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).map_err(|error| format!("cannot read `{}`: {error}", file.display()).into())
}

fn from_library(file: &Path) -> Result<Bundle> {
    let library = read(file)?;
    let file_name = match env::var("CARGO_CFG_TARGET_OS")?.as_str() {
        "windows" => "onnxruntime.dll",
        "macos" => "libonnxruntime.dylib",
        _ => "libonnxruntime.so",
    };
    let stream = miniz_oxide::deflate::compress_to_vec(&library, 6);
    let library = Packed { length: library.len(), sha256: sha256(&library), stream };
    Ok(Bundle { file_name: file_name.to_owned(), library, notices: Vec::new() })
}

fn from_wheel(pin: &Pin, wheel: &[u8]) -> Result<Bundle> {
    let mut archive = zip::ZipArchive::new(Cursor::new(wheel))?;
    // A wheel is a zip file, deflated: its own streams are kept. Nothing is compressed again, and every machine embeds
    // the same bytes.
    let mut unpack = |name: &str| -> Result<Packed> {
        let index = archive.index_for_name(name).ok_or_else(|| format!("the wheel has no `{name}`"))?;
        let mut stream = Vec::new();
        archive.by_index_raw(index)?.read_to_end(&mut stream)?;
        let content = miniz_oxide::inflate::decompress_to_vec(&stream).map_err(|error| format!("{name}: {error}"))?;
        Ok(Packed { stream, length: content.len(), sha256: sha256(&content) })
    };
    let library = unpack(pin.library)?;
    let notices = vec![
        ("LICENSE", unpack("onnxruntime/LICENSE")?),
        ("ThirdPartyNotices.txt", unpack("onnxruntime/ThirdPartyNotices.txt")?),
    ];
    let file_name = pin.library.rsplit('/').next().unwrap_or(pin.library).to_owned();
    Ok(Bundle { file_name, library, notices })
}

fn write(bundle: &Bundle, folder: &Path) -> Result<()> {
    let Bundle { file_name, library, notices } = bundle;
    let mut code = format!(
        "const FILE_NAME: &str = {file_name:?};\n\
         const LENGTH: usize = {};\n\
         const SHA256: &str = {:?};\n\
         static LIBRARY: &[u8] = include_bytes!(\"library.deflate\");\n\
         static NOTICES: &[(&str, &[u8])] = &[\n",
        library.length, library.sha256,
    );
    fs::write(folder.join("library.deflate"), &library.stream)?;
    for (title, text) in notices {
        fs::write(folder.join(title).with_extension("deflate"), &text.stream)?;
        writeln!(code, "    ({title:?}, include_bytes!({:?})),", Path::new(title).with_extension("deflate"))?;
    }
    code.push_str("];\n");
    Ok(fs::write(folder.join("onnxruntime.rs"), code)?)
}

fn pin() -> Result<Pin> {
    let target = ["OS", "ARCH", "ENV"].map(|part| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default());
    for row in include_str!("onnxruntime.tsv").lines() {
        if let [os, arch, abi, version, platform, sha256, library] = row.split('\t').collect::<Vec<_>>()[..]
            && [os, arch, abi] == target
        {
            return Ok(Pin { version, platform, sha256, library });
        }
    }
    Err(format!(
        "there is no official ONNX Runtime to embed for {}.\n\
         Set HIGGS_TTS_ORT_LIB to one built for it, or build with --no-default-features to find it when running.",
        target.join(" ").trim_end(),
    )
    .into())
}

/// The bytes of the pinned wheel.
fn wheel(pin: &Pin) -> Result<Vec<u8>> {
    if let Some(file) = input("HIGGS_TTS_ORT_WHEEL") {
        let bytes = read(&file)?;
        return match sha256(&bytes) {
            found if found == pin.sha256 => Ok(bytes),
            found => Err(format!("the SHA-256 of `{}` is {found}, not {}", file.display(), pin.sha256).into()),
        };
    }
    let cached = cache().map(|folder| folder.join(format!("{}.whl", pin.sha256)));
    // A damaged or half-written file is as good as none: it is fetched again and replaced.
    if let Some(bytes) = cached.as_ref().and_then(|file| fs::read(file).ok()).filter(|it| sha256(it) == pin.sha256) {
        return Ok(bytes);
    }
    let bytes = download(pin).map_err(|error| {
        format!(
            "cannot fetch ONNX Runtime {} for {}: {error}\n\
             Otherwise set HIGGS_TTS_ORT_WHEEL to that wheel (CPython 3.12), or HIGGS_TTS_ORT_LIB to a shared \
             library of ONNX Runtime, or build with --no-default-features to find one when running.",
            pin.version, pin.platform,
        )
    })?;
    if let Some(file) = cached {
        // Only to spare the next build the download; some machines let nothing be written outside the build folder.
        let _ = keep(&file, &bytes);
    }
    Ok(bytes)
}

/// The folder where downloads are kept for the next build.
fn cache() -> Option<PathBuf> {
    let folder = |variable: &str| env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("HIGGS_TTS_BUILD_CACHE").or_else(|| {
        let user = folder(if cfg!(windows) { "LOCALAPPDATA" } else { "XDG_CACHE_HOME" });
        let user = user.or_else(|| folder("HOME").map(|home| home.join(".cache")));
        user.filter(|user| user.is_absolute()).map(|user| user.join("higgs-tts").join("build"))
    })
}

/// Writes under another name first: a build that runs at the same time sees the whole file or none.
fn keep(file: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(file))?;
    let part = file.with_extension(format!("{}.part", process::id()));
    let kept = fs::write(&part, bytes).and_then(|()| fs::rename(&part, file));
    kept.inspect_err(|_| drop(fs::remove_file(&part)))
}

fn download(pin: &Pin) -> Result<Vec<u8>> {
    if env::var("CARGO_NET_OFFLINE").is_ok_and(|value| value == "true") {
        return Err("CARGO_NET_OFFLINE is set".into());
    }
    let folder = Path::new(&env::var("OUT_DIR")?).join("wheel");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir(&folder)?;
    // A requirement with a hash: pip itself refuses any other file.
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, format!("onnxruntime=={} --hash=sha256:{}\n", pin.version, pin.sha256))?;

    let output = pip()?
        .args(["download", "--quiet", "--no-input", "--no-deps", "--require-hashes", "--only-binary=:all:"])
        // Every tag is given: neither the Python that runs pip nor the machine that builds has a say in the choice.
        .args(["--python-version=3.12", "--implementation=cp", "--abi=cp312", "--platform", pin.platform])
        .arg("--requirement")
        .arg(&requirements)
        .arg("--dest")
        .arg(&folder)
        .output()?;
    if !output.status.success() {
        // The end of it: before that come warnings about each attempt.
        let complaint = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = complaint.lines().collect();
        return Err(lines[lines.len().saturating_sub(3)..].join("\n").into());
    }
    for entry in fs::read_dir(&folder)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "whl") {
            let bytes = read(&file)?;
            fs::remove_dir_all(&folder)?;
            return if sha256(&bytes) == pin.sha256 { Ok(bytes) } else { Err("pip fetched another file".into()) };
        }
    }
    Err("pip reported success but left no wheel".into())
}

/// The first pip that runs, cleared of settings that would change which file it chooses.
fn pip() -> Result<Command> {
    let spellings: [&[&str]; 5] =
        [&["python3", "-m", "pip"], &["python", "-m", "pip"], &["py", "-m", "pip"], &["pip3"], &["pip"]];
    for words in spellings {
        let command = || {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).env("PIP_DISABLE_PIP_VERSION_CHECK", "1").env("PIP_REQUIRE_VIRTUALENV", "0");
            for setting in ["ABI", "CONSTRAINT", "IMPLEMENTATION", "NO_BINARY", "PLATFORM", "REQUIREMENT"] {
                command.env_remove(format!("PIP_{setting}"));
            }
            command
        };
        if command().arg("--version").output().is_ok_and(|output| output.status.success()) {
            return Ok(command());
        }
    }
    Err("this needs pip, and `python3 -m pip` does not run. Install it (Debian, Ubuntu: apt install python3-pip)."
        .into())
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
