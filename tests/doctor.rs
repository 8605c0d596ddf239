//! What a bug report shows.

mod common;

use std::fs;

use common::{Run, program, run, tiny};
use tempfile::TempDir;

fn doctor(folder: &TempDir, arguments: &[&str]) -> (i32, String) {
    let mut command = program();
    command.args(["doctor", "--model-path"]).arg(folder.path()).args(arguments);
    let Run { code, stdout, stderr } = run(command, b"");
    assert_eq!(stderr, "");
    (code.unwrap(), String::from_utf8(stdout).unwrap())
}

#[test]
fn a_folder_that_is_well_is_described_part_by_part() {
    let (code, told) = doctor(&tiny("cpu_int4"), &[]);
    assert_eq!(code, 0);
    for line in [
        "ONNX Runtime 1.",
        "  providers: ",
        "made for CPUExecutionProvider",
        "  language model on the CPU, codec on the CPU",
        "  in  inputs_embeds[batch_size,sequence_length,64] float32",
        "      and 3 more like the last",
        "  49 operators: 10 MatMulNBits, ",
        "2 GroupQueryAttention",
        "the parts and the tokenizer fit together\nall is well\n",
    ] {
        assert!(told.contains(line), "{line} is not in\n{told}");
    }
    assert_eq!(told.matches("  check on the CPU: well\n").count(), 6);
}

#[test]
fn a_part_that_cannot_be_used_is_told_once_and_the_others_are_looked_at() {
    let folder = tiny("cpu_int4");
    fs::remove_file(folder.path().join("llm_decoder.onnx.data")).unwrap();
    let (code, told) = doctor(&folder, &[]);
    assert_eq!(code, 3);
    assert_eq!(told.matches("NOT USABLE: cannot open ").count(), 1);
    assert_eq!(told.matches("  check on the CPU: well\n").count(), 5);
    assert!(told.ends_with("\nnot well: llm_decoder\n"), "{told}");
}

#[test]
fn weights_that_are_not_numbers_fail_the_check() {
    let folder = tiny("cpu_int4");
    let data = folder.path().join("llm_decoder.onnx.data");
    fs::write(&data, vec![0xff; fs::metadata(&data).unwrap().len() as usize]).unwrap();
    let (code, told) = doctor(&folder, &[]);
    assert_eq!(code, 3);
    assert!(told.contains("  check on the CPU: it gives values that are not finite\n"), "{told}");
    assert!(told.ends_with("\nnot well: llm_decoder\n"), "{told}");
}

#[test]
fn a_tokenizer_or_a_number_that_does_not_fit_is_told() {
    let folder = tiny("cpu_int4");
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let (code, told) = doctor(&folder, &[]);
    assert_eq!(code, 3);
    assert!(told.contains("THE PARTS DO NOT FIT TOGETHER: cannot open "), "{told}");
}

#[test]
fn without_an_encoder_all_is_well_but_for_cloning() {
    let folder = tiny("cpu_int4");
    fs::remove_file(folder.path().join("audio_encoder.onnx")).unwrap();
    let (code, told) = doctor(&folder, &[]);
    assert_eq!(code, 0);
    assert!(told.contains("audio_encoder: not there, so voices cannot be cloned\n"), "{told}");
}

#[test]
#[cfg(not(feature = "cuda"))]
fn without_a_usable_gpu_the_parts_are_looked_at_on_the_cpu() {
    let (code, told) = doctor(&tiny("cuda_fp16"), &[]);
    assert_eq!(code, 3);
    assert!(told.contains("  NOT USABLE: this folder is made for CUDA, and no GPU can be used: "), "{told}");
    assert_eq!(told.matches("  check on the CPU: well\n").count(), 6);
    assert!(told.ends_with("\nnot well: the device\n"), "{told}");
    assert_eq!(doctor(&tiny("cuda_fp16"), &["--device", "cpu"]).0, 0);
}
