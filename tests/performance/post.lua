-- wrk -s post.lua URL BODY_FILE [JSON_LENGTH, where binary tensors follow]: post one body again and again, and print what was counted as one line of JSON.
function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  wrk.headers["Inference-Header-Content-Length"] = args[2]
  wrk.headers["Content-Type"] = args[2] and "application/octet-stream" or "application/json"
  wrk.headers["traceparent"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
end

function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format('{"requests": %d, "duration_us": %d, "failed": %d, "p50_us": %d, "p99_us": %d}\n',
    summary.requests, summary.duration, failed, latency:percentile(50), latency:percentile(99)))
end
