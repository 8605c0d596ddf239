//! The comparison of two model folders.

mod common;

use common::tiny;
use higgs_tts::{
    eval::{Agreement, compare},
    graphs::{Device, DeviceChoice},
    model::LoadOptions,
};

const ON_CPU: LoadOptions =
    LoadOptions { device: Some(DeviceChoice::Only(Device::Cpu)), codec_device: None, threads: None };

fn texts() -> Vec<String> {
    vec!["Hello, this is a test.".into(), "Have a nice day!".into()]
}

#[test]
fn a_folder_agrees_with_itself() {
    let folder = tiny("cpu_fp32");
    let report = compare(folder.path(), folder.path(), &texts(), 20, &ON_CPU).unwrap();
    let all = [report.text_embed, report.audio_embed, report.prefill, report.rows, report.codec_decode];
    for Agreement { cosine, max_difference } in all {
        assert!((cosine - 1.0).abs() < 1e-9 && max_difference == 0.0);
    }
    assert_eq!(report.argmax, [1.0; 8]);
    assert_eq!(report.codec_encode, Some(vec![1.0; 8]));
    assert_eq!((report.greedy_rows, report.eoc_rank_error), ((40, 40), (0, 0)));
}

#[test]
fn lower_precision_is_as_far_away_as_was_measured() {
    let (reference, int4, fp16) = (tiny("cpu_fp32"), tiny("cpu_int4"), tiny("cuda_fp16"));
    let report = compare(int4.path(), reference.path(), &texts(), 30, &ON_CPU).unwrap();
    assert_eq!(report.text_embed.max_difference, 0.0);
    assert!((0.99..0.9999).contains(&report.audio_embed.cosine), "{report:?}");
    assert!((0.93..0.98).contains(&report.prefill.cosine), "{report:?}");
    assert!(report.argmax.iter().all(|share| (0.3..0.9).contains(share)), "{report:?}");
    let report = compare(fp16.path(), reference.path(), &texts(), 30, &ON_CPU).unwrap();
    assert!(report.prefill.cosine > 0.99999 && report.prefill.cosine < 1.0, "{report:?}");
    assert!(report.argmax.iter().all(|&share| share > 0.9), "{report:?}");
}
