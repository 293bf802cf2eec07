use super::*;

fn container(id: &str, pairs: &[(&str, &str)]) -> Container {
    let labels = pairs.iter().map(|(key, value)| (format!("{LABEL}{key}"), (*value).to_owned()));
    Container {
        id: id.to_owned(),
        image: String::new(),
        labels: labels.collect(),
        annotations: HashMap::new(),
        args: Vec::new(),
        spec: Spec::default(),
    }
}

#[test]
fn a_service_is_used_when_a_container_of_its_workflow_names_it() {
    let service = |workflow: &str, name: &str| {
        container(&format!("{workflow}.{name}"), &[("workflow", workflow), ("service", name)])
    };
    let user = |workflow: &str, uses: &str| {
        container(
            &format!("{workflow}.f"),
            &[("workflow", workflow), ("function", "f"), ("uses", uses)],
        )
    };
    let all = [
        service("w", "cache"),
        service("w", "cache2"),
        service("w", "db"),
        service("x", "cache"),
        user("w", "cache2,db"),
        user("y", "cache"),
    ];
    let found = |workflow: &str| -> Vec<_> {
        of_workflow(&all, workflow).into_iter().map(|it| (it.id, it.is_used)).collect()
    };
    let own = |id: &str, is_used| (id.to_owned(), is_used);
    assert_eq!(found("w"), [own("w.cache", false), own("w.cache2", true), own("w.db", true)]);
    assert_eq!(found("x"), [own("x.cache", false)]);
    assert_eq!(found("y"), []);
}

#[test]
fn storage_goes_by_service_or_by_workflow_and_takes_empty_folders_with_it() {
    let base = tempfile::tempdir().unwrap();
    let config = NodeConfig { cache_dir: base.path().to_owned(), ..NodeConfig::default() };
    let make = |workflow: &str, service: &str| {
        let folder = storage_folder(&config, "n", workflow, service);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("data"), "x").unwrap();
        folder
    };
    let remove = |workflow: &str, service| remove_storage(&config, "n", workflow, service).unwrap();
    let (one, other) = (make("w", "one"), make("w", "other"));
    assert_eq!(remove("w", Some("one")), Some(one));
    assert_eq!(remove("w", Some("one")), None);
    assert!(other.exists());
    assert_eq!(remove("w", None), Some(base.path().join("services/n/w")));
    assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    // No name leads out of the folder.
    let outside = make("w", "one");
    for (workflow, service) in [("..", None), ("w/one", None), ("w", Some("..")), ("", None)] {
        assert_eq!(remove(workflow, service), None, "{workflow} {service:?}");
    }
    assert!(outside.join("data").exists());
}
