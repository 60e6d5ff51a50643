//! An independent GitLab: prints its address and the token of a runner, then does what standard input says.
//!
//! A command is an object of JSON on a line, and so is what comes back:
//!
//! | command | answer |
//! |---|---|
//! | `{"do": "enqueue", "name": "a", "script": ["true"], "artifacts": ["out"], "dependencies": [266]}` | `{"id": 267}` |
//! | the same with `"variables": {"A": "b"}` | |
//! | `{"do": "cancel", "id": 267}` | `{}` |
//! | `{"do": "fail_downloads", "times": 2}`: of each archive, so many answers before the right one | `{}` |
//! | `{"do": "interval", "seconds": 1}`: between two patches of a log | `{}` |
//! | `{"do": "state", "id": 267}` | `{"state": "success", "patches": 1, "artifacts": [{"filename": "a.zip", …}]}` |
//! | `{"do": "save", "id": 267, "to": "directory"}`: the log as `log`, and what was uploaded as `0`, `1`, … | `{}` |
//! | `{"do": "polls"}` | `{"count": 3}` |
//!
//! It ends with standard input.

use std::io::{BufRead, Write};
use std::path::Path;

use gitlab_runner_mock::{GitlabRunnerMock, MockJob, MockJobStepName, MockJobStepWhen};
use serde_json::{Value, json};

type Done = Result<Value, String>;

#[tokio::main]
async fn main() {
    let mock = GitlabRunnerMock::start().await;
    say(&format!("{} {}", mock.uri(), mock.runner_token()));
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("standard input is text");
        let done = match serde_json::from_str(&line) {
            Ok(command) => obey(&mock, &command).await,
            Err(error) => Err(error.to_string()),
        };
        say(&done.unwrap_or_else(|error| json!({ "error": error })).to_string());
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("somebody reads what is printed");
}

async fn obey(mock: &GitlabRunnerMock, command: &Value) -> Done {
    match command["do"].as_str() {
        Some("enqueue") => enqueue(mock, command),
        Some("cancel") => job(mock, &command["id"]).map(|job| {
            job.cancel();
            json!({})
        }),
        Some("fail_downloads") => {
            mock.set_inject_artifact_download_failures(number(&command["times"])?);
            Ok(json!({}))
        }
        Some("interval") => {
            mock.set_update_interval(number(&command["seconds"])?);
            Ok(json!({}))
        }
        Some("state") => job(mock, &command["id"]).map(|job| state(&job)),
        Some("save") => save(&job(mock, &command["id"])?, Path::new(text(&command["to"])?)),
        Some("polls") => Ok(json!({ "count": mock.n_requests().await })),
        _ => Err(format!("unknown command {command}")),
    }
}

fn enqueue(mock: &GitlabRunnerMock, command: &Value) -> Done {
    let mut builder = mock.job_builder(text(&command["name"])?.to_string());
    let script = texts(&command["script"])?;
    builder.add_step(MockJobStepName::Script, script, 3600, MockJobStepWhen::OnSuccess, false);
    let artifacts = texts(&command["artifacts"])?;
    if !artifacts.is_empty() {
        builder.add_artifact_paths(artifacts);
    }
    for (key, value) in command["variables"].as_object().into_iter().flatten() {
        builder.add_variable(key.clone(), text(value)?.to_string(), true, false);
    }
    for id in command["dependencies"].as_array().into_iter().flatten() {
        builder.dependency(job(mock, id)?);
    }
    let made = builder.build();
    let id = made.id();
    mock.enqueue_job(made);
    Ok(json!({ "id": id }))
}

fn state(job: &MockJob) -> Value {
    let artifacts: Vec<_> = job
        .uploaded_artifacts()
        .map(|each| json!({ "filename": each.filename, "size": each.data.len() }))
        .collect();
    json!({
        "state": job.state().to_string(),
        "updates": job.state_updates(),
        "patches": job.log_patches(),
        "log_bytes": job.log().len(),
        "artifacts": artifacts,
    })
}

fn save(job: &MockJob, to: &Path) -> Done {
    let kept = |error: std::io::Error| error.to_string();
    std::fs::write(to.join("log"), job.log()).map_err(kept)?;
    for (number, artifact) in job.uploaded_artifacts().enumerate() {
        std::fs::write(to.join(number.to_string()), artifact.data.as_slice()).map_err(kept)?;
    }
    Ok(json!({}))
}

fn job(mock: &GitlabRunnerMock, id: &Value) -> Result<MockJob, String> {
    let found = id.as_u64().and_then(|id| mock.get_job(id));
    found.ok_or_else(|| format!("there is no job {id}"))
}

fn number(value: &Value) -> Result<u32, String> {
    let found = value.as_u64().and_then(|number| u32::try_from(number).ok());
    found.ok_or_else(|| format!("expected a number, found {value}"))
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("expected a string, found {value}"))
}

fn texts(value: &Value) -> Result<Vec<String>, String> {
    let found = value.as_array().into_iter().flatten();
    found.map(|each| text(each).map(str::to_string)).collect()
}
