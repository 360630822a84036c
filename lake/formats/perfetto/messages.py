"""The messages of a Perfetto trace that are read, as field numbers and types, and the plans that scan them.

One message a line: its name, then `field=number:type`; `*` marks a repeated field, `?` one whose presence matters. The
numbers are those of https://perfetto.dev/docs/reference/trace-packet-proto; fields that nothing reads are left out.
`bytes` also stands for a message that is scanned in a second pass, such as one that contains itself.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from lake.formats.wire import Plan

_PACKAGE: Final = "lake.perfetto"
_MESSAGES: Final = """
TrackEvent chrome_active_processes=49:ChromeActiveProcesses category_iids=3:u64* categories=22:str* name_iid=10:u64
  name=23:str? type=9:i32 track_uuid=11:u64? counter_value=30:i64? double_counter_value=44:f64?
  extra_counter_track_uuids=31:u64* extra_counter_values=12:i64* extra_double_counter_track_uuids=45:u64*
  extra_double_counter_values=46:f64* flow_ids_old=36:u64* flow_ids=47:x64* terminating_flow_ids_old=42:u64*
  terminating_flow_ids=48:x64* debug_annotations=4:bytes* timestamp_delta_us=1:i64? timestamp_absolute_us=16:i64
  thread_time_delta_us=2:i64? thread_time_absolute_us=17:i64? thread_instruction_count_delta=8:i64?
  thread_instruction_count_absolute=20:i64? legacy_event=6:bytes log_message=21:LogMessage source_location_iid=34:u64
  correlation_id=52:u64? correlation_id_str=53:str? correlation_id_str_iid=54:u64?
  chrome_active=1042:ChromeActiveProcesses
TrackEvent_LegacyEvent name_iid=1:u64 phase=2:i32? duration_us=3:i64 unscoped_id=6:u64? local_id=10:u64?
  global_id=11:u64? id_scope=7:str? use_async_tts=9:bool bind_id=8:u64? bind_to_enclosing=12:bool
  flow_direction=13:i32 instant_event_scope=14:i32 pid_override=18:i32? tid_override=19:i32?
LogMessage source_location_iid=1:u64 body_iid=2:u64 prio=3:i32
DebugAnnotation name_iid=1:u64 name=10:str? bool_value=2:bool? uint_value=3:u64? int_value=4:i64? double_value=5:f64?
  string_value=6:str? string_value_iid=17:u64? pointer_value=7:u64? legacy_json_value=9:str? nested_value=8:bytes
  dict_entries=11:bytes* array_values=12:bytes* proto_type_name=16:str proto_value=14:bytes
TrackDescriptor uuid=1:u64? parent_uuid=5:u64 name=2:str? static_name=10:str? atrace_name=13:str?
  thread=4:ThreadDescriptor process=3:ProcessDescriptor counter=8:CounterDescriptor
  chrome_thread=7:ChromeThreadDescriptor sibling_merge_behavior=15:i32 sibling_merge_key=16:str?
  sibling_merge_key_int=17:u64? disallow_merging_with_system_tracks=9:bool
ThreadDescriptor pid=1:i32? tid=2:i64? thread_name=5:str reference_timestamp_us=6:i64 reference_thread_time_us=7:i64
  reference_thread_instruction_count=8:i64 chrome_thread_type=4:i32
ProcessDescriptor pid=1:i32? process_name=6:str cmdline=2:str* chrome_process_type=4:i32
ChromeThreadDescriptor is_sandboxed_tid=3:bool
CounterDescriptor type=1:i32 categories=2:str* unit=3:i32 unit_name=6:str unit_multiplier=4:i64 is_incremental=5:bool
TracePacketDefaults timestamp_clock_id=58:u32 track_event_defaults=11:TrackEventDefaults
  perf_sample_defaults=12:PerfSampleDefaults
TrackEventDefaults track_uuid=11:u64? extra_counter_track_uuids=31:u64* extra_double_counter_track_uuids=45:u64*
ClockSnapshot clocks=1:ClockSnapshot_Clock* primary_trace_clock=2:i32
ClockSnapshot_Clock clock_id=1:u32 timestamp=2:u64 is_incremental=3:bool unit_multiplier_ns=4:u64
InternedData event_categories=1:EventCategory* event_names=2:EventName* debug_annotation_names=3:DebugAnnotationName*
  debug_annotation_value_type_names=27:DebugAnnotationValueTypeName* debug_annotation_string_values=29:InternedString*
  source_locations=4:SourceLocation* log_message_body=20:LogMessageBody* build_ids=16:InternedString*
  mapping_paths=17:InternedString* source_paths=18:InternedString* function_names=5:InternedString*
  mappings=19:Mapping* frames=6:Frame* callstacks=7:Callstack* kernel_symbols=26:InternedString*
  correlation_id_str=43:InternedString* vulkan_memory_keys=22:InternedString*
  gpu_specifications=24:InternedGpuRenderStageSpecification* graphics_contexts=23:InternedGraphicsContext*
  gpu_counter_descriptors=47:InternedGpuCounterDescriptor* packet_context=30:NetworkPacketContext*
EventCategory iid=1:u64 name=2:str
EventName iid=1:u64 name=2:str
DebugAnnotationName iid=1:u64 name=2:str
DebugAnnotationValueTypeName iid=1:u64 name=2:str
SourceLocation iid=1:u64 file_name=2:str function_name=3:str line_number=4:u32
LogMessageBody iid=1:u64 body=2:str
InternedString iid=1:u64 str=2:bytes
Mapping iid=1:u64 build_id=2:u64 exact_offset=8:u64 start_offset=3:u64 start=4:u64 end=5:u64 load_bias=6:u64
  path_string_ids=7:u64*
Frame iid=1:u64 function_name_id=2:u64 mapping_id=3:u64 rel_pc=4:u64 source_path_iid=5:u64 line_number=6:u32
Callstack iid=1:u64 frame_ids=2:u64*
InternedGpuRenderStageSpecification iid=1:u64 name=2:str description=3:str category=4:i32
InternedGraphicsContext iid=1:u64 pid=2:i32 api=3:i32
FtraceEventBundle cpu=1:u32 event=2:bytes* lost_events=3:bool ftrace_clock=5:i32 ftrace_timestamp=6:i64
  boot_timestamp=7:i64 compact_sched=4:FtraceEventBundle_CompactSched previous_bundle_end_timestamp=10:u64
  last_read_event_timestamp=9:u64
FtraceEventBundle_CompactSched intern_table=5:str* switch_timestamp=1:u64* switch_prev_state=2:i64*
  switch_next_pid=3:i32* switch_next_prio=4:i32* switch_next_comm_index=6:u32* waking_timestamp=7:u64*
  waking_pid=8:i32* waking_target_cpu=9:i32* waking_prio=10:i32* waking_comm_index=11:u32*
RssStatFtraceEvent member=1:i32 size=2:i64 curr=3:u32? mm_id=4:u32?
RssStatThrottledFtraceEvent member=2:i32 size=4:i64 curr=1:u32? mm_id=3:u32?
ProcessTree processes=1:ProcessTree_Process* threads=2:ProcessTree_Thread*
ProcessTree_Process pid=1:i32 ppid=2:i32 cmdline=3:str* cmdline_is_comm=9:bool uid=5:i32
ProcessTree_Thread tid=1:i32 tgid=3:i32 name=2:str
ProcessStats processes=1:ProcessStats_Process* collection_end_timestamp=2:u64
ProcessStats_Process pid=1:i32 vm_size_kb=2:u64? vm_rss_kb=3:u64? rss_anon_kb=4:u64? rss_file_kb=5:u64?
  rss_shmem_kb=6:u64? vm_swap_kb=7:u64? vm_locked_kb=8:u64? vm_hwm_kb=9:u64? dmabuf_rss_kb=24:u64?
  oom_score_adj=10:i64? threads=11:ProcessStats_Thread* fds=15:ProcessStats_FDInfo* smr_rss_kb=16:u64?
  smr_pss_kb=17:u64? smr_pss_anon_kb=18:u64? smr_pss_file_kb=19:u64? smr_pss_shmem_kb=20:u64? smr_swap_pss_kb=23:u64?
  runtime_user_mode=21:u64? runtime_kernel_mode=22:u64?
ProcessStats_Thread tid=1:i32
ProcessStats_FDInfo fd=1:u64 path=2:str
SysStats meminfo=1:SysStats_MeminfoValue* vmstat=2:SysStats_VmstatValue* cpu_stat=3:SysStats_CpuTimes*
  num_forks=4:u64? num_irq_total=5:u64? num_softirq_total=7:u64? num_irq=6:SysStats_InterruptCount*
  num_softirq=8:SysStats_InterruptCount* devfreq=10:SysStats_DevfreqValue* cpufreq_khz=11:u32*
  buddy_info=12:SysStats_BuddyInfo* disk_stat=13:SysStats_DiskStat* psi=14:SysStats_PsiSample*
  thermal_zone=15:SysStats_ThermalZone* cpuidle_state=16:SysStats_CpuIdleState* gpufreq_mhz=17:u64*
SysStats_MeminfoValue key=1:i32 value=2:u64
SysStats_VmstatValue key=1:i32 value=2:u64
SysStats_CpuTimes cpu_id=1:u32? user_ns=2:u64 user_nice_ns=3:u64 system_mode_ns=4:u64 idle_ns=5:u64 io_wait_ns=6:u64
  irq_ns=7:u64 softirq_ns=8:u64 steal_ns=9:u64
SysStats_InterruptCount irq=1:i32 count=2:u64
SysStats_DevfreqValue key=1:str value=2:u64
SysStats_BuddyInfo node=1:str zone=2:str order_pages=3:u32*
SysStats_DiskStat device_name=1:str read_sectors=2:u64 read_time_ms=3:u64 write_sectors=4:u64 write_time_ms=5:u64
  discard_sectors=6:u64 discard_time_ms=7:u64 flush_count=8:u64 flush_time_ms=9:u64
SysStats_PsiSample resource=1:i32 total_ns=2:u64
SysStats_ThermalZone temp=2:u64 type=3:str
SysStats_CpuIdleState cpu_id=1:u32 cpuidle_state_entry=2:SysStats_CpuIdleStateEntry*
SysStats_CpuIdleStateEntry state=1:str duration_us=2:u64
SystemInfo utsname=1:Utsname page_size=6:u32
Utsname machine=4:str release=3:str
PowerRails rail_descriptor=1:PowerRails_RailDescriptor* energy_data=2:PowerRails_EnergyData* session_uuid=3:u64
PowerRails_RailDescriptor index=1:u32 rail_name=2:str subsys_name=3:str
PowerRails_EnergyData index=1:u32 timestamp_ms=2:u64? energy=3:u64
BatteryCounters charge_counter_uah=1:i64? capacity_percent=2:f32? current_ua=3:i64? current_avg_ua=4:i64? name=5:str
  energy_counter_uwh=6:i64? voltage_uv=7:i64?
AndroidLogPacket events=1:AndroidLogPacket_LogEvent*
AndroidLogPacket_LogEvent log_id=1:i32 pid=2:i32 tid=3:i32 uid=4:i32 timestamp=5:u64 tag=6:str prio=7:i32
  message=8:str args=9:AndroidLogPacket_LogEvent_Arg*
AndroidLogPacket_LogEvent_Arg name=1:str int_value=2:i64? float_value=3:f32? string_value=4:str?
AndroidEnergyEstimationBreakdown energy_consumer_descriptor=1:AndroidEnergyConsumerDescriptor
  energy_consumer_id=2:i32? energy_uws=3:i64? per_uid_breakdown=4:AndroidEnergyEstimationBreakdown_EnergyUidBreakdown*
AndroidEnergyConsumerDescriptor energy_consumers=1:AndroidEnergyConsumer*
AndroidEnergyConsumer energy_consumer_id=1:i32 ordinal=2:i32 type=3:str name=4:str
AndroidEnergyEstimationBreakdown_EnergyUidBreakdown uid=1:i32? energy_uws=2:i64?
EntityStateResidency power_entity_state=1:EntityStateResidency_PowerEntityState*
  residency=2:EntityStateResidency_StateResidency*
EntityStateResidency_PowerEntityState entity_index=1:i32 state_index=2:i32 entity_name=3:str state_name=4:str
EntityStateResidency_StateResidency entity_index=1:i32 state_index=2:i32 total_time_in_state_ms=3:u64
InitialDisplayState display_state=1:i32 brightness=2:f64
AndroidSystemProperty values=1:AndroidSystemProperty_PropertyValue*
AndroidSystemProperty_PropertyValue name=1:str value=2:str
GenericKernelCpuFrequencyEvent cpu=1:i32 freq_hz=2:i64
Trigger trigger_name=1:str trusted_producer_uid=3:i32 producer_name=2:str
ChromeTrigger trigger_name=1:str trigger_name_hash=2:x32
GpuCounterEvent counter_descriptor=1:GpuCounterDescriptor counters=2:GpuCounterEvent_GpuCounter* gpu_id=3:i32
  counter_descriptor_iid=4:u64
GpuCounterDescriptor specs=1:GpuCounterDescriptor_GpuCounterSpec*
GpuCounterDescriptor_GpuCounterSpec counter_id=1:u32 name=2:str description=3:str numerator_units=7:i32*
  denominator_units=8:i32* value_direction=11:i32
GpuCounterEvent_GpuCounter counter_id=1:u32 int_value=2:i64? double_value=3:f64?
InternedGpuCounterDescriptor iid=1:u64 counter_descriptor=2:GpuCounterDescriptor gpu_id=3:i32
GpuRenderStageEvent event_id=1:u64? duration=2:u64 hw_queue_id=3:i32 hw_queue_iid=13:u64 stage_id=4:i32
  stage_iid=14:u64 context=5:u64 gpu_id=11:i32 name=17:str name_iid=20:u64 render_pass_handle=9:u64
  render_target_handle=8:u64 command_buffer_handle=12:u64 submission_id=10:u32
  extra_data=6:GpuRenderStageEvent_ExtraData* specifications=7:GpuRenderStageEvent_Specifications
  render_pass_instance_id=16:u64
GpuRenderStageEvent_ExtraData name=1:str value=2:str
GpuRenderStageEvent_Specifications hw_queue=2:GpuRenderStageEvent_Specifications_Description*
  stage=3:GpuRenderStageEvent_Specifications_Description*
  context_spec=1:GpuRenderStageEvent_Specifications_ContextSpec
GpuRenderStageEvent_Specifications_ContextSpec context=1:u64 pid=2:i32
GpuRenderStageEvent_Specifications_Description name=1:str? description=2:str
GpuLog severity=1:i32 tag=2:str log_message=3:str
VulkanApiEvent vk_queue_submit=2:VulkanApiEvent_VkQueueSubmit
VulkanApiEvent_VkQueueSubmit duration_ns=1:u64 pid=2:u32 tid=3:u32 vk_command_buffers=5:u64* submission_id=6:u32
PerfSample cpu=1:u32? pid=2:u32 tid=3:u32 cpu_mode=5:i32 timebase_count=6:u64? follower_counts=7:u64*
  callstack_iid=4:u64? unwind_error=16:i32? kernel_records_lost=17:u64 sample_skipped_reason=18:i32?
  producer_event=19:PerfSample_ProducerEvent
PerfSample_ProducerEvent source_stop_reason=1:i32
PerfSampleDefaults timebase=1:PerfEvents_Timebase followers=4:FollowerEvent* process_shard_count=2:u32
  chosen_process_shard=3:u32
PerfEvents_Timebase frequency=2:u64 period=1:u64 counter=4:i32? tracepoint=3:PerfEvents_Tracepoint
  raw_event=5:PerfEvents_RawEvent name=10:str
FollowerEvent counter=1:i32? tracepoint=2:PerfEvents_Tracepoint raw_event=3:PerfEvents_RawEvent name=4:str
PerfEvents_Tracepoint name=1:str
PerfEvents_RawEvent type=1:u32 config=2:u64 config1=3:u64 config2=4:u64
ProfilePacket strings=1:InternedString* mappings=4:Mapping* frames=2:Frame* callstacks=3:Callstack*
  process_dumps=5:ProfilePacket_ProcessHeapSamples* continued=6:bool index=7:u64
ProfilePacket_ProcessHeapSamples pid=1:u64 timestamp=9:u64 samples=2:ProfilePacket_HeapSample*
  orig_sampling_interval_bytes=13:u64 heap_name=11:str disconnected=6:bool buffer_overran=7:bool
  buffer_corrupted=8:bool
ProfilePacket_HeapSample callstack_id=1:u64 self_allocated=2:u64 self_freed=3:u64 self_max=8:u64? self_max_count=9:u64
  alloc_count=5:u64 free_count=6:u64
StreamingProfilePacket callstack_iid=1:u64* timestamp_delta_us=2:i64* process_priority=3:i32
ModuleSymbols path=1:str build_id=2:str address_symbols=3:AddressSymbols*
AddressSymbols address=1:u64 lines=2:Line*
Line function_name=1:str source_file_name=2:str line_number=3:u32
GraphicsFrameEvent buffer_event=1:GraphicsFrameEvent_BufferEvent
GraphicsFrameEvent_BufferEvent frame_number=1:u32 type=2:i32? layer_name=3:str duration_ns=4:u64 buffer_id=5:u32?
CpuPerUidData cluster_count=1:u32 uid=2:u32* total_time_ms=3:u64*
KernelWakelockData wakelock=1:KernelWakelockData_Wakelock* wakelock_id=2:u32* time_held_millis=3:u64*
  error_flags=4:u64
KernelWakelockData_Wakelock wakelock_id=1:u32 wakelock_name=2:str wakelock_type=3:i32
ChromeActiveProcesses pid=1:i32*
TranslationTable slice_name=4:SliceNameTranslationTable
SliceNameTranslationTable raw_to_deobfuscated_name=1:bytes*
PackagesList packages=1:PackagesList_PackageInfo*
PackagesList_PackageInfo name=1:str uid=2:u64
PrintFtraceEvent ip=1:u64 buf=2:str
SchedSwitchFtraceEvent prev_comm=1:str prev_pid=2:i32 prev_prio=3:i32 prev_state=4:i64 next_comm=5:str next_pid=6:i32
  next_prio=7:i32
SchedWakeupFtraceEvent comm=1:str pid=2:i32 prio=3:i32 success=4:i32 target_cpu=5:i32
SchedWakingFtraceEvent comm=1:str pid=2:i32 prio=3:i32 success=4:i32 target_cpu=5:i32
SchedWakeupNewFtraceEvent comm=1:str pid=2:i32 prio=3:i32 success=4:i32 target_cpu=5:i32
SchedProcessFreeFtraceEvent comm=1:str pid=2:i32 prio=3:i32
SchedProcessExitFtraceEvent comm=1:str pid=2:i32 tgid=3:i32 prio=4:i32
TaskNewtaskFtraceEvent pid=1:i32 comm=2:str clone_flags=3:u64 oom_score_adj=4:i32
TaskRenameFtraceEvent pid=1:i32 oldcomm=2:str newcomm=3:str oom_score_adj=4:i32
SchedBlockedReasonFtraceEvent pid=1:i32 caller=2:u64 io_wait=3:u32
OomScoreAdjUpdateFtraceEvent comm=1:str oom_score_adj=2:i32 pid=3:i32
MarkVictimFtraceEvent pid=1:i32
SignalGenerateFtraceEvent code=1:i32 comm=2:str group=3:i32 pid=4:i32 result=5:i32 sig=6:i32
CpuFrequencyFtraceEvent state=1:u32 cpu_id=2:u32
CpuIdleFtraceEvent state=1:u32 cpu_id=2:u32
GpuFrequencyFtraceEvent gpu_id=1:u32 state=2:u32
CpuFrequencyLimitsFtraceEvent min_freq=1:u32 max_freq=2:u32 cpu_id=3:u32
ClockSetRateFtraceEvent name=1:str state=2:u64 cpu_id=3:u64
ClockEnableFtraceEvent name=1:str state=2:u64 cpu_id=3:u64
ClockDisableFtraceEvent name=1:str state=2:u64 cpu_id=3:u64
DcvshFreqFtraceEvent cpu=1:u64 freq=2:u64
IrqHandlerEntryFtraceEvent irq=1:i32 name=2:str handler=3:u32
IrqHandlerExitFtraceEvent irq=1:i32 ret=2:i32
SoftirqEntryFtraceEvent vec=1:u32
SoftirqExitFtraceEvent vec=1:u32
IpiEntryFtraceEvent reason=1:str
IpiExitFtraceEvent reason=1:str
SuspendResumeFtraceEvent action=1:str val=2:i32 start=3:u32
SuspendResumeMinimalFtraceEvent start=1:u32
NetDevXmitFtraceEvent len=1:u32 name=2:str rc=3:i32 skbaddr=4:u64
NetifReceiveSkbFtraceEvent len=1:u32 name=2:str skbaddr=3:u64
TcpRetransmitSkbFtraceEvent daddr=1:u32 dport=2:u32 saddr=3:u32 skaddr=4:u64 skbaddr=5:u64 sport=6:u32 state=7:i32
NapiGroReceiveEntryFtraceEvent data_len=1:u32 gso_size=2:u32 gso_type=3:u32 hash=4:u32 ip_summed=5:u32 l4_hash=6:u32
  len=7:u32 mac_header=8:i32 mac_header_valid=9:u32 name=10:str napi_id=11:u32 nr_frags=12:u32 protocol=13:u32
  queue_mapping=14:u32 skbaddr=15:u64 truesize=16:u32 vlan_proto=17:u32 vlan_tagged=18:u32 vlan_tci=19:u32
NapiGroReceiveExitFtraceEvent ret=1:i32
InetSockSetStateFtraceEvent daddr=1:u32 dport=2:u32 family=3:u32 newstate=4:i32 oldstate=5:i32 protocol=6:u32
  saddr=7:u32 skaddr=8:u64 sport=9:u32
KfreeSkbFtraceEvent location=1:u64 protocol=2:u32 skbaddr=3:u64
DmaHeapStatFtraceEvent inode=1:u64 len=2:i64 total_allocated=3:u64
IonStatFtraceEvent buffer_id=1:u32 len=2:i64 total_allocated=3:u64
IonHeapGrowFtraceEvent heap_name=1:str len=2:u64 total_allocated=3:i64
IonHeapShrinkFtraceEvent heap_name=1:str len=2:u64 total_allocated=3:i64
FastrpcDmaStatFtraceEvent cid=1:i32 len=2:i64 total_allocated=3:u64
CmaAllocStartFtraceEvent align=1:u32 count=2:u32 name=3:str
CmaAllocFinishFtraceEvent name=1:str pfn=2:u64 page=3:u64 count=4:u64 align=5:u32 errorno=6:i32
CmaAllocInfoFtraceEvent align=1:u32 count=2:u32 err_iso=3:u32 err_mig=4:u32 err_test=5:u32 name=6:str nr_mapped=7:u64
  nr_migrated=8:u64 nr_reclaimed=9:u64 pfn=10:u64
MmEventRecordFtraceEvent avg_lat=1:u32 count=2:u32 max_lat=3:u32 type=4:u32
SysEnterFtraceEvent id=1:i64 args=2:u64*
SysExitFtraceEvent id=1:i64 ret=2:i64
SdeTracingMarkWriteFtraceEvent pid=1:i32 trace_name=2:str trace_type=3:u32 value=4:i32 trace_begin=5:u32
DpuTracingMarkWriteFtraceEvent pid=1:i32 trace_name=2:str trace_begin=3:u32 name=4:str type=5:u32 value=6:i32
G2dTracingMarkWriteFtraceEvent pid=1:i32 name=4:str type=5:u32 value=6:i32
ZeroFtraceEvent flag=1:i32 name=2:str pid=3:i32 value=4:i64
ThermalTemperatureFtraceEvent id=1:i32 temp=2:i32 temp_prev=3:i32 thermal_zone=4:str
CdevUpdateFtraceEvent target=1:u64 type=2:str
ThermalExynosAcpmBulkFtraceEvent tz_id=1:u32 current_temp=2:u32 ctrl_temp=3:u32 cdev_state=4:u32 pid_et_p=5:i32
  pid_power_range=6:i32 pid_p=7:i32 pid_i=8:i32 k_p=9:i32 k_i=10:i32 timestamp=11:u64
ThermalExynosAcpmHighOverheadFtraceEvent tz_id=1:i32 current_temp=2:u32 ctrl_temp=3:u32 cdev_state=4:u32
  pid_et_p=5:i32 k_p=6:i32 k_i=7:i32
UfshcdCommandFtraceEvent dev_name=1:str doorbell=2:u32 intr=3:u32 lba=4:u64 opcode=5:u32 str=6:str tag=7:u32
  transfer_len=8:i32 group_id=9:u32 str_t=10:u32
UfshcdClkGatingFtraceEvent dev_name=1:str state=2:i32
WakeupSourceActivateFtraceEvent name=1:str state=2:u64
WakeupSourceDeactivateFtraceEvent name=1:str state=2:u64
CrosEcSensorhubDataFtraceEvent current_time=1:i64 current_timestamp=2:i64 delta=3:i64 ec_fifo_timestamp=4:u32
  ec_sensor_num=5:u32 fifo_timestamp=6:i64
AndroidFsDatareadStartFtraceEvent bytes=1:i32 cmdline=2:str i_size=3:i64 ino=4:u64 offset=5:i64 pathbuf=6:str
  pid=7:i32
AndroidFsDatareadEndFtraceEvent bytes=1:i32 ino=2:u64 offset=3:i64
F2fsIostatFtraceEvent app_bio=1:u64 app_brio=2:u64 app_dio=3:u64 app_drio=4:u64 app_mio=5:u64 app_mrio=6:u64
  app_rio=7:u64 app_wio=8:u64 dev=9:u64 fs_cdrio=10:u64 fs_cp_dio=11:u64 fs_cp_mio=12:u64 fs_cp_nio=13:u64
  fs_dio=14:u64 fs_discard=15:u64 fs_drio=16:u64 fs_gc_dio=17:u64 fs_gc_nio=18:u64 fs_gdrio=19:u64 fs_mio=20:u64
  fs_mrio=21:u64 fs_nio=22:u64 fs_nrio=23:u64
F2fsIostatLatencyFtraceEvent d_rd_avg=1:u32 d_rd_cnt=2:u32 d_rd_peak=3:u32 d_wr_as_avg=4:u32 d_wr_as_cnt=5:u32
  d_wr_as_peak=6:u32 d_wr_s_avg=7:u32 d_wr_s_cnt=8:u32 d_wr_s_peak=9:u32 dev=10:u64 m_rd_avg=11:u32 m_rd_cnt=12:u32
  m_rd_peak=13:u32 m_wr_as_avg=14:u32 m_wr_as_cnt=15:u32 m_wr_as_peak=16:u32 m_wr_s_avg=17:u32 m_wr_s_cnt=18:u32
  m_wr_s_peak=19:u32 n_rd_avg=20:u32 n_rd_cnt=21:u32 n_rd_peak=22:u32 n_wr_as_avg=23:u32 n_wr_as_cnt=24:u32
  n_wr_as_peak=25:u32 n_wr_s_avg=26:u32 n_wr_s_cnt=27:u32 n_wr_s_peak=28:u32
FuncgraphEntryFtraceEvent depth=1:i32 func=2:u64
FuncgraphExitFtraceEvent calltime=1:u64 depth=2:i32 func=3:u64 overrun=4:u64 rettime=5:u64
KprobeEvent name=1:str type=2:i32
MmVmscanDirectReclaimBeginFtraceEvent order=1:i32 may_writepage=2:i32 gfp_flags=3:u32
MmVmscanDirectReclaimEndFtraceEvent nr_reclaimed=1:u64
WorkqueueExecuteStartFtraceEvent work=1:u64 function=2:u64
WorkqueueExecuteEndFtraceEvent work=1:u64 function=2:u64
HypEnterFtraceEvent
HypExitFtraceEvent
HostHcallFtraceEvent id=1:u32 invalid=2:u32
HostSmcFtraceEvent id=1:u64 forwarded=2:u32
HostMemAbortFtraceEvent esr=1:u64 addr=2:u64
VirtioGpuCmdQueueFtraceEvent ctx_id=1:u32 dev=2:i32 fence_id=3:u64 flags=4:u32 name=5:str num_free=6:u32 seqno=7:u32
  type=8:u32 vq=9:u32
VirtioGpuCmdResponseFtraceEvent ctx_id=1:u32 dev=2:i32 fence_id=3:u64 flags=4:u32 name=5:str num_free=6:u32
  seqno=7:u32 type=8:u32 vq=9:u32
VirtioVideoResourceQueueFtraceEvent data_size0=1:u32 data_size1=2:u32 data_size2=3:u32 data_size3=4:u32
  queue_type=5:u32 resource_id=6:i32 stream_id=7:i32 timestamp=8:u64
VirtioVideoCmdFtraceEvent stream_id=1:u32 type=2:u32
VirtioVideoCmdDoneFtraceEvent stream_id=1:u32 type=2:u32
VirtioVideoResourceQueueDoneFtraceEvent data_size0=1:u32 data_size1=2:u32 data_size2=3:u32 data_size3=4:u32
  queue_type=5:u32 resource_id=6:i32 stream_id=7:i32 timestamp=8:u64
DrmVblankEventFtraceEvent crtc=1:i32 high_prec=2:u32 seq=3:u32 time=4:i64
DrmVblankEventDeliveredFtraceEvent crtc=1:i32 file=2:u64 seq=3:u32
BinderTransactionFtraceEvent debug_id=1:i32 target_node=2:i32 to_proc=3:i32 to_thread=4:i32 reply=5:i32 code=6:u32
  flags=7:u32
BinderTransactionReceivedFtraceEvent debug_id=1:i32
BinderTransactionAllocBufFtraceEvent data_size=1:u64 debug_id=2:i32 offsets_size=3:u64 extra_buffers_size=4:u64
BinderLockFtraceEvent tag=1:str
BinderLockedFtraceEvent tag=1:str
BinderUnlockFtraceEvent tag=1:str
ScmCallStartFtraceEvent arginfo=1:u32 x0=2:u64 x5=3:u64
ScmCallEndFtraceEvent
LowmemoryKillFtraceEvent comm=1:str pid=2:i32 pagecache_size=3:i64 pagecache_limit=4:i64 free=5:i64
TrustySmcFtraceEvent r0=1:u64 r1=2:u64 r2=3:u64 r3=4:u64
TrustySmcDoneFtraceEvent ret=1:u64
GpuMemTotalFtraceEvent gpu_id=1:u32 pid=2:u32 size=3:u64
GpuWorkPeriodFtraceEvent gpu_id=1:u32 uid=2:u32 start_time_ns=3:u64 end_time_ns=4:u64 total_active_duration_ns=5:u64
PanelWriteGenericFtraceEvent pid=1:i32 trace_name=2:str trace_begin=3:u32 name=4:str type=5:u32 value=6:i32
I2cReadFtraceEvent adapter_nr=1:i32 msg_nr=2:u32 addr=3:u32 flags=4:u32 len=5:u32
I2cWriteFtraceEvent adapter_nr=1:i32 msg_nr=2:u32 addr=3:u32 flags=4:u32 len=5:u32 buf=7:bytes
I2cResultFtraceEvent adapter_nr=1:i32 nr_msgs=2:u32 ret=3:i32
FtraceEvent print=3:PrintFtraceEvent sched_switch=4:SchedSwitchFtraceEvent sched_wakeup=17:SchedWakeupFtraceEvent
  sched_waking=20:SchedWakingFtraceEvent sched_wakeup_new=114:SchedWakeupNewFtraceEvent
  sched_process_free=240:SchedProcessFreeFtraceEvent sched_process_exit=238:SchedProcessExitFtraceEvent
  task_newtask=235:TaskNewtaskFtraceEvent task_rename=236:TaskRenameFtraceEvent
  sched_blocked_reason=18:SchedBlockedReasonFtraceEvent oom_score_adj_update=326:OomScoreAdjUpdateFtraceEvent
  mark_victim=334:MarkVictimFtraceEvent signal_generate=325:SignalGenerateFtraceEvent
  cpu_frequency=11:CpuFrequencyFtraceEvent cpu_idle=13:CpuIdleFtraceEvent gpu_frequency=332:GpuFrequencyFtraceEvent
  cpu_frequency_limits=12:CpuFrequencyLimitsFtraceEvent clock_set_rate=16:ClockSetRateFtraceEvent
  clock_enable=14:ClockEnableFtraceEvent clock_disable=15:ClockDisableFtraceEvent dcvsh_freq=508:DcvshFreqFtraceEvent
  irq_handler_entry=36:IrqHandlerEntryFtraceEvent irq_handler_exit=37:IrqHandlerExitFtraceEvent
  softirq_entry=24:SoftirqEntryFtraceEvent softirq_exit=25:SoftirqExitFtraceEvent ipi_entry=21:IpiEntryFtraceEvent
  ipi_exit=22:IpiExitFtraceEvent suspend_resume=113:SuspendResumeFtraceEvent
  suspend_resume_minimal=481:SuspendResumeMinimalFtraceEvent net_dev_xmit=361:NetDevXmitFtraceEvent
  netif_receive_skb=360:NetifReceiveSkbFtraceEvent tcp_retransmit_skb=363:TcpRetransmitSkbFtraceEvent
  napi_gro_receive_entry=365:NapiGroReceiveEntryFtraceEvent napi_gro_receive_exit=366:NapiGroReceiveExitFtraceEvent
  inet_sock_set_state=362:InetSockSetStateFtraceEvent kfree_skb=367:KfreeSkbFtraceEvent
  dma_heap_stat=351:DmaHeapStatFtraceEvent ion_stat=335:IonStatFtraceEvent ion_heap_grow=315:IonHeapGrowFtraceEvent
  ion_heap_shrink=314:IonHeapShrinkFtraceEvent fastrpc_dma_stat=347:FastrpcDmaStatFtraceEvent
  cma_alloc_start=465:CmaAllocStartFtraceEvent cma_alloc_finish=576:CmaAllocFinishFtraceEvent
  cma_alloc_info=466:CmaAllocInfoFtraceEvent mm_event_record=328:MmEventRecordFtraceEvent
  sys_enter=329:SysEnterFtraceEvent sys_exit=330:SysExitFtraceEvent
  sde_tracing_mark_write=333:SdeTracingMarkWriteFtraceEvent dpu_tracing_mark_write=348:DpuTracingMarkWriteFtraceEvent
  g2d_tracing_mark_write=349:G2dTracingMarkWriteFtraceEvent zero=331:ZeroFtraceEvent
  thermal_temperature=341:ThermalTemperatureFtraceEvent cdev_update=342:CdevUpdateFtraceEvent
  thermal_exynos_acpm_bulk=506:ThermalExynosAcpmBulkFtraceEvent
  thermal_exynos_acpm_high_overhead=507:ThermalExynosAcpmHighOverheadFtraceEvent
  ufshcd_command=406:UfshcdCommandFtraceEvent ufshcd_clk_gating=407:UfshcdClkGatingFtraceEvent
  wakeup_source_activate=404:WakeupSourceActivateFtraceEvent
  wakeup_source_deactivate=405:WakeupSourceDeactivateFtraceEvent
  cros_ec_sensorhub_data=364:CrosEcSensorhubDataFtraceEvent
  android_fs_dataread_start=432:AndroidFsDatareadStartFtraceEvent
  android_fs_dataread_end=431:AndroidFsDatareadEndFtraceEvent f2fs_iostat=419:F2fsIostatFtraceEvent
  f2fs_iostat_latency=420:F2fsIostatLatencyFtraceEvent funcgraph_entry=437:FuncgraphEntryFtraceEvent
  funcgraph_exit=438:FuncgraphExitFtraceEvent kprobe_event=542:KprobeEvent
  mm_vmscan_direct_reclaim_begin=46:MmVmscanDirectReclaimBeginFtraceEvent
  mm_vmscan_direct_reclaim_end=47:MmVmscanDirectReclaimEndFtraceEvent
  workqueue_execute_start=58:WorkqueueExecuteStartFtraceEvent workqueue_execute_end=57:WorkqueueExecuteEndFtraceEvent
  hyp_enter=476:HypEnterFtraceEvent hyp_exit=477:HypExitFtraceEvent host_hcall=478:HostHcallFtraceEvent
  host_smc=479:HostSmcFtraceEvent host_mem_abort=480:HostMemAbortFtraceEvent rss_stat=313:RssStatFtraceEvent
  rss_stat_throttled=359:RssStatThrottledFtraceEvent virtio_gpu_cmd_queue=468:VirtioGpuCmdQueueFtraceEvent
  virtio_gpu_cmd_response=469:VirtioGpuCmdResponseFtraceEvent
  virtio_video_resource_queue=441:VirtioVideoResourceQueueFtraceEvent virtio_video_cmd=439:VirtioVideoCmdFtraceEvent
  virtio_video_cmd_done=440:VirtioVideoCmdDoneFtraceEvent
  virtio_video_resource_queue_done=442:VirtioVideoResourceQueueDoneFtraceEvent
  drm_vblank_event=409:DrmVblankEventFtraceEvent drm_vblank_event_delivered=410:DrmVblankEventDeliveredFtraceEvent
  binder_transaction=50:BinderTransactionFtraceEvent
  binder_transaction_received=51:BinderTransactionReceivedFtraceEvent
  binder_transaction_alloc_buf=323:BinderTransactionAllocBufFtraceEvent binder_lock=53:BinderLockFtraceEvent
  binder_locked=54:BinderLockedFtraceEvent binder_unlock=55:BinderUnlockFtraceEvent
  scm_call_start=338:ScmCallStartFtraceEvent scm_call_end=339:ScmCallEndFtraceEvent
  lowmemory_kill=35:LowmemoryKillFtraceEvent trusty_smc=445:TrustySmcFtraceEvent
  trusty_smc_done=446:TrustySmcDoneFtraceEvent gpu_mem_total=340:GpuMemTotalFtraceEvent
  gpu_work_period=488:GpuWorkPeriodFtraceEvent panel_write_generic=490:PanelWriteGenericFtraceEvent
  i2c_read=27:I2cReadFtraceEvent i2c_write=28:I2cWriteFtraceEvent i2c_result=29:I2cResultFtraceEvent
FrameTimelineEvent expected_display_frame_start=1:FrameTimelineEvent_DisplayStart
  actual_display_frame_start=2:FrameTimelineEvent_ActualDisplay
  expected_surface_frame_start=3:FrameTimelineEvent_SurfaceStart
  actual_surface_frame_start=4:FrameTimelineEvent_SurfaceStart frame_end=5:FrameTimelineEvent_FrameEnd
FrameTimelineEvent_DisplayStart cookie=1:i64? token=2:i64? pid=3:i32?
FrameTimelineEvent_ActualDisplay cookie=1:i64? token=2:i64? pid=3:i32? present_type=4:i32 on_time_finish=5:bool
  gpu_composition=6:bool jank_type=7:i32 prediction_type=8:i32 jank_severity_type=9:i32
FrameTimelineEvent_SurfaceStart cookie=1:i64? token=2:i64? display_frame_token=3:i64? pid=4:i32? layer_name=5:str
  present_type=6:i32 on_time_finish=7:bool gpu_composition=8:bool jank_type=9:i32 prediction_type=10:i32
  is_buffer=11:bool jank_severity_type=12:i32
FrameTimelineEvent_FrameEnd cookie=1:i64?
NameEntry key=1:str value=2:str
NetworkPacketEvent direction=1:i32 network_interface=2:str length=3:u32 uid=4:u32 tag=5:u32 ip_proto=6:u32
  tcp_flags=7:u32 local_port=8:u32 remote_port=9:u32
NetworkPacketBundle iid=1:u64 ctx=2:NetworkPacketEvent packet_timestamps=3:u64* packet_lengths=4:u32*
  total_packets=5:u32 total_duration=6:u64 total_length=7:u64?
NetworkPacketContext iid=1:u64 ctx=2:NetworkPacketEvent
"""
_F: Final = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "i32": _F.TYPE_INT32,
    "i64": _F.TYPE_INT64,
    "u32": _F.TYPE_UINT32,
    "u64": _F.TYPE_UINT64,
    "s32": _F.TYPE_SINT32,
    "s64": _F.TYPE_SINT64,
    "x32": _F.TYPE_FIXED32,
    "x64": _F.TYPE_FIXED64,
    "f32": _F.TYPE_FLOAT,
    "f64": _F.TYPE_DOUBLE,
    "bool": _F.TYPE_BOOL,
    "str": _F.TYPE_STRING,
    "bytes": _F.TYPE_BYTES,
}


def _entries() -> list[tuple[str, list[str]]]:
    """Every message with its fields as written above."""
    entries: list[tuple[str, list[str]]] = []
    for line in _MESSAGES.strip().splitlines():
        words = line.split()
        if line.startswith(" "):
            entries[-1][1].extend(words)
        else:
            entries.append((words[0], words[1:]))
    return entries


def _add_field(message: descriptor_pb2.DescriptorProto, word: str) -> None:
    name, _, rest = word.partition("=")
    number, _, kind = rest.partition(":")
    field = message.field.add(name=name, number=int(number))
    plain = kind.rstrip("*?")
    field.label = _F.LABEL_REPEATED if "*" in kind else _F.LABEL_OPTIONAL
    if plain in _TYPES:
        field.type = _TYPES[plain]
    else:
        field.type, field.type_name = _F.TYPE_MESSAGE, f".{_PACKAGE}.{plain}"
    if "?" in kind:
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="lake/perfetto.proto", package=_PACKAGE, syntax="proto3")
    for name, words in _entries():
        message = file.message_type.add(name=name)
        for word in words:
            _add_field(message, word)
        batch = file.message_type.add(name=f"{name}Batch")
        _add_field(batch, f"item=1:{name}*")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


@cache
def kernel_events() -> dict[int, tuple[str, str]]:
    """Name and message of every kernel event that is read, by its field in `FtraceEvent`."""
    words = next(words for name, words in _entries() if name == "FtraceEvent")
    found = {}
    for word in words:
        name, _, rest = word.partition("=")
        number, _, message = rest.partition(":")
        found[int(number)] = (name, message)
    return found


@cache
def plan(name: str) -> Plan:
    """The plan of a batch of messages of one type: node `item` has a row a message.

    Raises:
        KeyError: the message is not in the table.
    """
    found = _pool().FindMessageTypeByName(f"{_PACKAGE}.{name}Batch")
    return Plan(message_factory.GetMessageClass(found))
