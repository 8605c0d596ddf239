use std::io::Read;

use super::*;

const RATE_HZ: u32 = 24_000;

fn audio(samples: &[f32]) -> Audio {
    Audio { samples: samples.to_vec(), sample_rate_hz: RATE_HZ }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn refusal(path: &Path) -> String {
    let output = Output::File(path.into());
    let error = check(&output).unwrap_err();
    assert!(error.downcast_ref::<UserError>().is_some());
    assert_eq!(format!("{error:#}"), format!("{:#}", write(&output, &audio(&[0.0]), SampleFormat::Pcm16).unwrap_err()));
    format!("{error:#}")
}

#[test]
fn the_header_of_integers_is_44_known_bytes() {
    let expected = b"RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\xc0\x5d\0\0\x80\xbb\0\0\x02\0\x10\0data\x08\0\0\0";
    assert_eq!(wav_header(SampleFormat::Pcm16, RATE_HZ, Some(8)), expected);
}

#[test]
fn the_header_of_floats_has_an_extension_and_a_fact_chunk() {
    let expected = b"RIFF\x3a\0\0\0WAVEfmt \x12\0\0\0\x03\0\x01\0\xc0\x5d\0\0\0\x77\x01\0\x04\0\x20\0\0\0\
        fact\x04\0\0\0\x02\0\0\0data\x08\0\0\0";
    assert_eq!(wav_header(SampleFormat::Float32, RATE_HZ, Some(8)), expected);
}

#[test]
fn the_sizes_of_a_stream_of_unknown_length_are_all_ones() {
    for format in [SampleFormat::Pcm16, SampleFormat::Float32] {
        let header = wav_header(format, RATE_HZ, None);
        assert_eq!(header[4..8], [0xff; 4]);
        assert_eq!(header[header.len() - 4..], [0xff; 4]);
    }
}

#[test]
fn integers_are_rounded_and_clipped_and_the_clipped_are_counted() {
    let folder = folder();
    let path = folder.path().join("x.wav");
    let samples = [0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -7.0, 0.4 / 32767.0, 0.6 / 32767.0, -0.6 / 32767.0];
    let written = write(&Output::File(path.clone()), &audio(&samples), SampleFormat::Pcm16).unwrap();
    assert_eq!(written.clipped_samples, 2);
    let mut reader = hound::WavReader::open(path).unwrap();
    let spec = reader.spec();
    assert_eq!((spec.channels, spec.sample_rate, spec.bits_per_sample), (1, RATE_HZ, 16));
    assert_eq!(spec.sample_format, hound::SampleFormat::Int);
    let read: Vec<i16> = reader.samples().map(Result::unwrap).collect();
    assert_eq!(read, [0, 16384, -16384, 32767, -32767, 32767, -32767, 0, 1, -1]);
}

#[test]
fn floats_come_back_bit_for_bit() {
    let folder = folder();
    let path = folder.path().join("x.wav");
    let samples = [0.0, -0.0, 0.1, -1.0, 3.5, f32::MIN_POSITIVE, 1e-42];
    let written = write(&Output::File(path.clone()), &audio(&samples), SampleFormat::Float32).unwrap();
    assert_eq!(written.clipped_samples, 0);
    let mut reader = hound::WavReader::open(&path).unwrap();
    assert_eq!(reader.spec().sample_format, hound::SampleFormat::Float);
    let read: Vec<f32> = reader.samples().map(Result::unwrap).collect();
    assert_eq!(bits(&read), bits(&samples));
    let recording = crate::audio::read(&path, 1.0).unwrap();
    assert_eq!(bits(&recording.audio.samples), bits(&samples));
}

fn bits(samples: &[f32]) -> Vec<u32> {
    samples.iter().map(|sample| sample.to_bits()).collect()
}

#[test]
fn no_samples_make_a_file_of_a_header_only() {
    let folder = folder();
    let path = folder.path().join("x.wav");
    write(&Output::File(path.clone()), &audio(&[]), SampleFormat::Pcm16).unwrap();
    assert_eq!(fs::read(path).unwrap(), wav_header(SampleFormat::Pcm16, RATE_HZ, Some(0)));
}

#[test]
fn samples_that_are_not_finite_are_refused() {
    let folder = folder();
    let path = folder.path().join("x.wav");
    for sample in [f32::NAN, f32::INFINITY] {
        let error = write(&Output::File(path.clone()), &audio(&[sample]), SampleFormat::Float32).unwrap_err();
        assert!(format!("{error:#}").ends_with("x.wav`: some samples are not finite numbers"), "{error:#}");
    }
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn checking_leaves_nothing_behind() {
    let folder = folder();
    check(&Output::File(folder.path().join("x.wav"))).unwrap();
    check(&Output::Stdout).unwrap();
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn paths_that_cannot_be_written_are_refused_early_with_the_reason() {
    let folder = folder();
    let (dir, file) = (folder.path().display(), folder.path().join("file"));
    fs::write(&file, "").unwrap();
    let missing = refusal(&folder.path().join("y/x.wav"));
    assert_eq!(missing, format!("cannot write `{dir}/y/x.wav`: the folder `{dir}/y` does not exist"));
    let not_a_folder = refusal(&file.join("x.wav"));
    assert_eq!(not_a_folder, format!("cannot write `{dir}/file/x.wav`: `{dir}/file` is not a folder"));
    assert_eq!(refusal(folder.path()), format!("cannot write `{dir}`: it is a folder, and a file is wanted"));
    assert_eq!(refusal(Path::new("")), "cannot write ``: it is not the name of a file");
    fs::set_permissions(&file, readonly(&file)).unwrap();
    assert_eq!(refusal(&file), format!("cannot write `{dir}/file`: it is read-only"));
    assert_eq!(names(folder.path()), ["file"]);
}

fn readonly(path: &Path) -> Permissions {
    let mut permissions = fs::metadata(path).unwrap().permissions();
    permissions.set_readonly(true);
    permissions
}

#[test]
fn a_write_that_fails_half_way_leaves_the_old_file_and_no_part() {
    let folder = folder();
    let path = folder.path().join("x.wav");
    fs::write(&path, "old").unwrap();
    let full_disk = |file: &mut File| {
        file.write_all(b"half")?;
        Err(io::ErrorKind::StorageFull.into())
    };
    let error = Target::find(&path).unwrap().fill(full_disk).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["x.wav"]);
}

#[test]
fn the_file_grows_under_another_name_in_the_same_folder() {
    let folder = folder();
    let path = folder.path().join("x.wav");
    let content = |file: &mut File| {
        let names = names(folder.path());
        assert!(
            matches!(&names[..], [name] if name.starts_with(".higgs-tts.") && name.ends_with(".part")),
            "{names:?}"
        );
        file.write_all(b"new")
    };
    Target::find(&path).unwrap().fill(content).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(names(folder.path()), ["x.wav"]);
}

#[test]
fn a_closed_pipe_is_a_broken_pipe() {
    let (reader, mut writer) = io::pipe().unwrap();
    drop(reader);
    assert_eq!(send(&mut writer, &[0; 100]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_file_has_ordinary_permissions_and_an_old_one_keeps_its_own() {
        let folder = folder();
        let (ordinary, path) = (folder.path().join("ordinary"), folder.path().join("x.wav"));
        fs::write(&ordinary, "").unwrap();
        write(&Output::File(path.clone()), &audio(&[0.0]), SampleFormat::Pcm16).unwrap();
        assert_eq!(mode(&path), mode(&ordinary));
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        write(&Output::File(path.clone()), &audio(&[0.0]), SampleFormat::Pcm16).unwrap();
        assert_eq!(mode(&path), 0o640);
    }

    #[test]
    fn links_are_followed_even_to_a_file_that_is_not_there_yet() {
        let folder = folder();
        fs::create_dir(folder.path().join("far")).unwrap();
        let (link, real) = (folder.path().join("link.wav"), folder.path().join("far/real.wav"));
        symlink("second.wav", &link).unwrap();
        symlink("far/real.wav", folder.path().join("second.wav")).unwrap();
        for _ in 0..2 {
            write(&Output::File(link.clone()), &audio(&[0.0]), SampleFormat::Pcm16).unwrap();
            assert_eq!(fs::read(&real).unwrap().len(), 46);
            assert!(link.is_symlink());
        }
        symlink("loop.wav", folder.path().join("loop.wav")).unwrap();
        assert!(refusal(&folder.path().join("loop.wav")).ends_with("too many symbolic links on the way"));
    }

    #[test]
    fn a_pipe_with_a_name_is_written_as_a_stream() {
        let (mut reader, writer) = io::pipe().unwrap();
        let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
        write(&Output::File(path.into()), &audio(&[0.0, 1.0]), SampleFormat::Pcm16).unwrap();
        drop(writer);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes[44..], [0, 0, 0xff, 0x7f]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_device_is_an_error_with_its_name() {
        let full = Output::File("/dev/full".into());
        check(&full).unwrap();
        let error = write(&full, &audio(&[0.0]), SampleFormat::Pcm16).unwrap_err();
        assert_eq!(error.downcast_ref::<io::Error>().unwrap().kind(), io::ErrorKind::StorageFull);
        let message = format!("{error:#}");
        assert!(message.starts_with("cannot write `/dev/full`: No space left on device"), "{message}");
        write(&Output::File("/dev/null".into()), &audio(&[0.0]), SampleFormat::Pcm16).unwrap();
    }
}
