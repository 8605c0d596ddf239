use std::fs;

use super::*;

fn checkpoint(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let views = tensors.iter().map(|&(name, dtype, shape, bytes)| {
        (name, safetensors::tensor::TensorView::new(dtype, shape.to_vec(), bytes).unwrap())
    });
    fs::write(folder.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    folder
}

#[test]
fn values_of_every_format_are_read_from_any_place() {
    let bf16: Vec<u8> = [1.0, -2.5, 0.25].iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
    let f16: Vec<u8> = [1.0, -2.5, 0.25].iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
    let f32: Vec<u8> = [1.0f32, -2.5, 0.25].iter().flat_map(|v| v.to_le_bytes()).collect();
    let folder =
        checkpoint(&[("b", Dtype::BF16, &[3], &bf16), ("h", Dtype::F16, &[3], &f16), ("f", Dtype::F32, &[3], &f32)]);
    let weights = Weights::open(folder.path()).unwrap();
    for name in ["b", "h", "f"] {
        let tensor = weights.tensor(name).unwrap();
        assert_eq!(tensor.to_vec(), [1.0, -2.5, 0.25]);
        let mut two = [0.0; 2];
        tensor.read(1, &mut two);
        assert_eq!(two, [-2.5, 0.25]);
    }
}

#[test]
fn what_is_missing_or_of_another_shape_is_listed() {
    let folder = checkpoint(&[("a", Dtype::F32, &[2], &[0; 8]), ("i", Dtype::I64, &[1], &[0; 8])]);
    let weights = Weights::open(folder.path()).unwrap();
    let wanted = |name: &str| (name.to_owned(), vec![1]);
    weights.check(&[("a".into(), vec![2])]).unwrap();
    let error = weights.check(&["a", "b", "i", "d", "e"].map(wanted)).unwrap_err().to_string();
    let expected = "the checkpoint does not fit its config.json: a has the shape [2], expected [1], b is missing, \
                    i is of type I64, and 2 more";
    assert_eq!(error, expected);
}

#[test]
fn an_incomplete_checkpoint_is_told_apart() {
    let folder = checkpoint(&[("a", Dtype::F32, &[4], &[0; 16])]);
    let path = folder.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let refused = || Weights::open(folder.path()).err().unwrap().to_string();
    fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    let (found, promised) = (whole.len() - 5, whole.len());
    assert!(refused().ends_with(&format!("it has {found} bytes, and its header promises {promised}")));
    fs::write(&path, &whole[..20]).unwrap();
    assert!(refused().ends_with("its 20 bytes do not begin with a header of safetensors"));
    fs::write(&path, "version https://git-lfs.github.com/spec/v1\n").unwrap();
    assert!(refused().ends_with("it is a git-lfs pointer, not the file itself"));
    fs::remove_file(&path).unwrap();
    assert!(refused().ends_with("has no model.safetensors"));
    let index = r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#;
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    fs::write(folder.path().join("one.safetensors"), &whole).unwrap();
    assert!(refused().starts_with("1 of 2 checkpoint files are missing"));
    fs::write(folder.path().join("two.safetensors"), &whole).unwrap();
    Weights::open(folder.path()).unwrap();
}

#[test]
fn the_origin_differs_where_the_weights_do() {
    let one = checkpoint(&[("a", Dtype::F32, &[1024], &[0; 4096])]);
    let other = checkpoint(&[("a", Dtype::F32, &[1024], &[1; 4096])]);
    let origin = |folder: &tempfile::TempDir| Weights::open(folder.path()).unwrap().origin().to_owned();
    assert_eq!(origin(&one), origin(&one));
    assert_ne!(origin(&one), origin(&other));
}

#[test]
fn made_up_weights_are_gaussian_and_the_same_from_any_place() {
    let shapes = [("m.weight", vec![100, 100]), ("n.weight", vec![7]), ("m.bias", vec![7]), ("o.weight", vec![9, 9])];
    let shapes = shapes.map(|(name, shape)| (name.to_owned(), shape));
    let weights = Weights::random(5, shapes.clone());
    let values = weights.tensor("m.weight").unwrap().to_vec();
    for start in [0, 1, 2, 777, 778] {
        for count in [1, 2, 3, 8, 9] {
            let mut piece = vec![0.0; count];
            weights.tensor("m.weight").unwrap().read(start, &mut piece);
            assert_eq!(piece, values[start..start + count]);
        }
    }
    let moment = |n: i32| values.iter().map(|v| f64::from(*v).powi(n)).sum::<f64>() / values.len() as f64;
    let (deviation, kurtosis) = (moment(2).sqrt(), moment(4) / moment(2).powi(2));
    assert!(moment(1).abs() < 1e-3 && (deviation - 0.02).abs() < 5e-4, "{deviation}");
    // A Gaussian has 3, the sum of four uniform numbers 2.7.
    assert!((kurtosis - 2.7).abs() < 0.1, "{kurtosis}");
    assert_eq!(weights.tensor("n.weight").unwrap().to_vec(), [1.0; 7]);
    assert_eq!(weights.tensor("m.bias").unwrap().to_vec(), [0.0; 7]);
    assert_ne!(weights.tensor("o.weight").unwrap().to_vec(), values[..81]);
    assert_ne!(Weights::random(6, shapes).tensor("m.weight").unwrap().to_vec(), values);
}
