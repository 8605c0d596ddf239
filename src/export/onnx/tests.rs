use std::fs;

use super::*;
use crate::onnx::Graph;

fn free(name: &str) -> Axis {
    Axis::Free(name.into())
}

fn describe(model: &mut ModelWriter<'_>) -> Result<()> {
    model.input("x", ElementType::Float32, &[free("n"), Axis::Fixed(2)]);
    model.output("y", ElementType::Float32, &[free("n"), Axis::Fixed(2)]);
    model.weight("small", ElementType::Float32, &[2], |out| Ok(out.write_all(&[1; 8])?))?;
    model.weight("large", ElementType::Uint8, &[2, 1 << 19], |out| Ok(out.write_all(&vec![7; 1 << 20])?))?;
    model.metadata("made by", "a test");
    model.node(Node::new("Clip", &["x", "small", ""], &["clipped"]));
    model.node(Node::new("Identity", &["clipped"], &["y"]));
    Ok(())
}

#[test]
fn a_written_model_is_read_back_and_was_measured_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let mut watched = Vec::new();
    let mut watch = |bytes| {
        watched.push(bytes);
        Ok(())
    };
    let mut model = ModelWriter::create(&path, &mut watch);
    describe(&mut model).unwrap();
    assert!(!path.exists());
    let written = model.finish().unwrap();
    assert_eq!(watched, [8, 1 << 20]);

    let graph = Graph::read(&path).unwrap();
    assert_eq!(graph.bytes, written.graph + written.data);
    assert_eq!(graph.input("x").unwrap().to_string(), "x[n,2] float32");
    assert_eq!(graph.weight("large").unwrap().shape, [2, 1 << 19]);
    assert_eq!(graph.metadata["made by"], "a test");
    assert_eq!(graph.nodes[0].inputs, ["x", "small"]);
    let data = fs::read(folder.path().join("m.onnx.data")).unwrap();
    assert_eq!(data.len(), (1 << 16) + (1 << 20));
    assert!(
        data[..8] == [1; 8] && data[8..1 << 16].iter().all(|&byte| byte == 0) && data[1 << 16..] == vec![7; 1 << 20]
    );

    let mut model = ModelWriter::measure(&path);
    describe(&mut model).unwrap();
    assert_eq!(model.finish().unwrap(), written);
}

#[test]
fn a_model_that_fails_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let mut watch = |_| Ok(());
    let mut model = ModelWriter::create(&path, &mut watch);
    let error = model.weight("short", ElementType::Float32, &[2], |out| Ok(out.write_all(&[0; 4])?)).unwrap_err();
    assert_eq!(error.to_string(), "short has 4 bytes, its shape [2] needs 8");
    drop(model);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn malformed_graphs_are_refused() {
    let refused = |nodes: &[Node]| {
        let mut model = ModelWriter::measure(Path::new("m.onnx"));
        model.input("x", ElementType::Float32, &[]);
        model.output("y", ElementType::Float32, &[]);
        nodes.iter().for_each(|node| model.node(node.clone()));
        format!("{:#}", model.finish().unwrap_err())
    };
    let identity = |input, output| Node::new("Identity", &[input], &[output]);
    assert_eq!(refused(&[]), "m.onnx would be malformed: nothing gives the output y");
    assert!(refused(&[identity("z", "y")]).ends_with("the node y uses z, which is not there"));
    assert!(refused(&[identity("x", "x")]).ends_with("the value x is given twice"));
    assert!(refused(&[identity("x", "y"), identity("x", "z").named("y")]).ends_with("two nodes are called y"));
}
