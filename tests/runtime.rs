//! A process has one ONNX Runtime, so each case is a process of its own: this executable again, for the test `child`.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::{env, fs, num::NonZeroUsize, path::Path, process::Command, ptr};

use higgs_tts::{
    error::{Fault, UserError},
    graphs::runtime::Runtime,
};
use tempfile::TempDir;

#[test]
#[ignore = "the process that the other tests start"]
fn child() {
    let threads = NonZeroUsize::new(3).unwrap();
    match Runtime::start(threads) {
        Ok(runtime) => {
            let again = Runtime::start(NonZeroUsize::MIN).unwrap();
            assert!(ptr::eq(runtime, again) && again.threads() == threads);
            assert!(runtime.providers().contains(&"CPUExecutionProvider".to_owned()));
            println!("\nstarted {}, {}", runtime.version(), runtime.library());
        }
        Err(error) => {
            let user = error.downcast_ref::<UserError>().unwrap();
            assert_eq!(user.fault(), Fault::Model);
            assert!(user.hint().is_some());
            println!("\n{error:#}");
        }
    }
}

/// Runs `child` with an empty home, and returns the line it printed.
fn process(home: &Path, variables: &[(&str, &Path)]) -> String {
    let mut command = Command::new(env::current_exe().unwrap());
    for inherited in ["ORT_DYLIB_PATH", "ORT_DISABLE_TELEMETRY", "HIGGS_TTS_CACHE", "XDG_CACHE_HOME"] {
        command.env_remove(inherited);
    }
    command.env("HOME", home).env("LOCALAPPDATA", home.join("local")).envs(variables.iter().copied());
    let output = command.args(["child", "--exact", "--ignored", "--nocapture"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().find(|line| line.starts_with("started") || line.starts_with("cannot")).unwrap().to_owned()
}

#[test]
fn a_library_that_cannot_be_used_is_refused_with_the_reason() {
    let home = TempDir::new().unwrap();
    let refuse = |library: &Path, reason: &str| {
        let line = process(home.path(), &[("ORT_DYLIB_PATH", library)]);
        assert_eq!(line, format!("cannot load ONNX Runtime from `{}`: {reason}", library.display()));
    };
    refuse(home.path(), "it is not a file");
    #[cfg(target_os = "linux")]
    {
        refuse(&home.path().join("none"), "No such file or directory (os error 2)");
        let text = home.path().join("text.so");
        fs::write(&text, "a text").unwrap();
        refuse(&text, "it is not a shared library");

        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.lines().find_map(|line| line.split_whitespace().nth(5).filter(|it| it.contains("/libc.so")));
        let libc = Path::new(libc.unwrap());
        refuse(libc, "it is a shared library, but not ONNX Runtime");

        let mut bytes = fs::read(libc).unwrap();
        let half = home.path().join("half.so");
        fs::write(&half, &bytes[..bytes.len() / 2]).unwrap();
        refuse(&half, "it is cut short");
        let foreign = home.path().join("foreign.so");
        bytes[18] ^= 0xff;
        fs::write(&foreign, &bytes).unwrap();
        refuse(&foreign, "it is built for another processor");
    }
}

#[cfg(ort_bundled)]
mod bundled {
    use std::{path::PathBuf, thread};

    use super::*;

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
        }
        found
    }

    #[test]
    fn a_start_leaves_one_copy_of_the_library_in_the_cache_and_nothing_else() {
        let home = TempDir::new().unwrap();
        // Some at once, and an empty ORT_DYLIB_PATH is as good as none.
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let line = process(home.path(), &[("ORT_DYLIB_PATH", Path::new(""))]);
                    assert!(line.contains(", bundled, unpacked to "), "{line}");
                });
            }
        });
        let files = files(home.path());
        assert_eq!(files.len(), 1, "{files:?}");
        assert!(files[0].components().any(|part| part.as_os_str() == "higgs-tts"), "{files:?}");
    }

    #[test]
    fn a_copy_of_another_length_or_one_that_does_not_load_is_replaced() {
        let home = TempDir::new().unwrap();
        process(home.path(), &[]);
        let copy = files(home.path()).remove(0);
        let library = fs::read(&copy).unwrap();
        for damaged in [vec![], library[..1000].to_vec(), vec![0; library.len()]] {
            fs::write(&copy, damaged).unwrap();
            process(home.path(), &[]);
            assert!(fs::read(&copy).unwrap() == library);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn without_a_folder_to_unpack_it_in_the_library_is_used_from_memory() {
        let home = TempDir::new().unwrap();
        let file = home.path().join("file");
        fs::write(&file, "").unwrap();
        let line = process(home.path(), &[("HIGGS_TTS_CACHE", &file.join("folder"))]);
        assert!(line.ends_with(", bundled, in memory"), "{line}");
    }

    #[test]
    fn the_users_own_library_comes_first() {
        let home = TempDir::new().unwrap();
        process(home.path(), &[]);
        let copy = files(home.path()).remove(0);
        let line = process(home.path(), &[("ORT_DYLIB_PATH", &copy)]);
        assert!(line.ends_with(&format!("ORT_DYLIB_PATH {}", copy.display())), "{line}");
    }
}
